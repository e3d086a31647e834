/* A program whose first thread leaves by pthread_exit, and which ends with its last one.
 *
 *     last memory NAME       a thread writes when the first one has left, and starts another one
 *     last child NAME        the same in a child
 *     last linked SERVER     the program is linked with the library (compiled with LINKED) */
#include "common.h"

#include <pthread.h>
#include <threads.h>

#ifdef LINKED
#include <quire_dsm.h>
#endif

#define SIZE 4096

static volatile unsigned char *at;

static void bye(void) {
  say("bye");
  at[2] = 3;
}

static void *second(void *nothing) {
  CHECK(nothing == NULL && usleep(700000) == 0);
  at[1] = 2;
  say("two");
  return NULL;
}

static void start(void *(*what)(void *)) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, what, NULL) == 0);
}

static void *first(void *nothing) {
  CHECK(nothing == NULL && usleep(700000) == 0);
  at[0] = 1;
  say("one");
  start(second);
  pthread_exit(NULL);
}

#ifdef LINKED
static void get(const char *server) {
  quire_dsm *link = quire_dsm_connect(server, NULL);
  CHECK(link != NULL && quire_dsm_create(link, "grid", SIZE, NULL) == 0);
  quire_dsm_object *grid = quire_dsm_open(link, "grid", QUIRE_DSM_WRITE);
  CHECK(grid != NULL);
  at = quire_dsm_address(grid);
}
#else
static void get(const char *name) {
  int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
}
#endif

int main(int argc, char **argv) {
  CHECK(argc == 3);
  int is_child = strcmp(argv[1], "child") == 0;
  get(argv[2]);
  if (is_child) {
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0) {
      CHECK(waitpid(pid, &status, 0) == pid && status == 0);
      return 0;
    }
  }
  CHECK(atexit(bye) == 0);
  start(first);
  if (is_child)
    thrd_exit(7);
  pthread_exit(NULL);
}
