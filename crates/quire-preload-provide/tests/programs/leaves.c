/* A program whose first thread leaves by pthread_exit, which ends with its last thread: what was to be
 * run when the thread leaves and when the program ends is run, and what the others do is done.
 *
 *     leaves posix|c11 MIB    by which function, and how much memory is used before and after
 *     leaves child MIB        a child does so, too */
#include <pthread.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#include "common.h"

static pthread_key_t key;
static size_t size;

static void tell(const char *line) {
  puts(line);
  fflush(stdout);
}

static void *use(void) {
  char *memory = malloc(size);
  CHECK(memory != NULL);
  memset(memory, 1, size);
  return memory;
}

static void at_exit(void) { tell("the program ends"); }

static void unwound(void *what) { tell(what); }

static void has_left(void *what) { tell(what); }

static void *work(void *unused) {
  /* When the first thread has left. */
  usleep(100000);
  char *memory = use();
  CHECK(memory[size / 2] == 1);
  free(memory);
  tell("the second thread ends");
  return unused;
}

static _Noreturn void leave(int by_c11) {
  CHECK(pthread_key_create(&key, has_left) == 0);
  CHECK(pthread_setspecific(key, "the first thread has left") == 0);
  char *memory = use();
  CHECK(memory[size / 2] == 1);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, work, NULL) == 0 && pthread_detach(thread) == 0);
  pthread_cleanup_push(unwound, "the first thread leaves");
  if (by_c11)
    thrd_exit(5);
  pthread_exit(memory);
  pthread_cleanup_pop(0);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  size = (size_t)atoi(argv[2]) << 20;
  CHECK(atexit(at_exit) == 0);
  if (strcmp(argv[1], "child") == 0) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
      int status;
      CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
  }
  leave(strcmp(argv[1], "c11") == 0);
}
