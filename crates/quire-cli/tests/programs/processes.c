/* Threads that come and go, and children of every kind, for a second. Exits
 * with 43. */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void fail(const char *what) {
  fprintf(stderr, "processes: %s\n", what);
  _exit(1);
}

static volatile int stop;

static void *spin(void *argument) {
  volatile uint64_t *sum = argument;
  while (!stop)
    (*sum)++;
  return NULL;
}

static void *brief(void *argument) {
  return argument;
}

/* The child must not have inherited the trap flag: it would die of it. */
static void work(void) {
  volatile uint64_t sum = 0;
  for (int i = 0; i < 10000; i++)
    sum += i;
}

static void reap(pid_t child, int wanted) {
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child)
    fail("no child");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted)
    fail("a child ended as it should not");
}

int main(void) {
  pthread_t threads[3];
  uint64_t sums[3] = {0};
  for (int i = 0; i < 3; i++)
    pthread_create(&threads[i], NULL, spin, &sums[i]);
  for (double end = seconds() + 1.5; seconds() < end;) {
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, brief, sums);
    pthread_join(thread, &result);
    if (result != sums)
      fail("a thread returned something else");
    pid_t child = fork();
    if (child == 0) {
      work();
      _exit(7);
    }
    reap(child, 7);
    child = vfork();
    if (child == 0)
      _exit(8);
    reap(child, 8);
    char *argv[] = {"sh", "-c", "exit 9", NULL};
    if (posix_spawnp(&child, "sh", NULL, NULL, argv, environ) != 0)
      fail("posix_spawn");
    reap(child, 9);
    work();
  }
  stop = 1;
  for (int i = 0; i < 3; i++) {
    pthread_join(threads[i], NULL);
    if (sums[i] == 0)
      fail("a thread did not run");
  }
  return 43;
}
