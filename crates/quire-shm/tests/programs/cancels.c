/* Threads are cancelled while they wait in calls that the library stands before, and leave.
 *
 *     cancels NAME */
#include "common.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

static int pipes[2];
static pid_t child;
static char fifo[64];
static int cleaned;

static void clean(void *nothing) {
  (void)nothing;
  cleaned++;
}

static void *reads(void *nothing) {
  char byte;
  pthread_cleanup_push(clean, NULL);
  CHECK(read(pipes[0], &byte, 1) == 1);
  pthread_cleanup_pop(0);
  return nothing;
}

static void *opens(void *nothing) {
  pthread_cleanup_push(clean, NULL);
  CHECK(open(fifo, O_RDONLY) < 0);
  pthread_cleanup_pop(0);
  return nothing;
}

static void *waits(void *nothing) {
  pthread_cleanup_push(clean, NULL);
  CHECK(waitpid(-1, NULL, 0) < 0);
  pthread_cleanup_pop(0);
  return nothing;
}

static void *waits_with(void *nothing) {
  siginfo_t info;
  struct rusage used;
  pthread_cleanup_push(clean, NULL);
  CHECK(waitid(P_ALL, 0, &info, WEXITED | __WALL) < 0 || wait4(child, NULL, 0, &used) < 0);
  pthread_cleanup_pop(0);
  return nothing;
}

static void *leaves(void *value) {
  pthread_cleanup_push(clean, NULL);
  pthread_exit(value);
  pthread_cleanup_pop(0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
  char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED && shm_unlink(argv[1]) == 0);
  memory[0] = 1;
  CHECK(pipe(pipes) == 0 && (child = fork()) >= 0);
  if (child == 0) {
    pause();
    _exit(0);
  }
  snprintf(fifo, sizeof fifo, "/tmp/quire-cancels-%d", (int)getpid());
  CHECK(mkfifo(fifo, 0600) == 0);
  void *(*all[])(void *) = {reads, opens, waits, waits_with};
  int count = sizeof all / sizeof all[0];
  for (int number = 0; number < count; number++) {
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, all[number], NULL) == 0);
    usleep(20000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned == number + 1);
  }
  CHECK(unlink(fifo) == 0);
  pthread_t thread;
  void *result = NULL;
  CHECK(pthread_create(&thread, NULL, leaves, &cleaned) == 0);
  CHECK(pthread_join(thread, &result) == 0 && result == &cleaned && cleaned == count + 1);
  CHECK(memory[0] == 1 && kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
  return 0;
}
