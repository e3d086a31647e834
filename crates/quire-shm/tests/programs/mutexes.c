/* Robust mutexes in shared memory: who locks one is told that its owner has ended.
 *
 *     mutexes NAME [SECONDS]   and soon, where a time is given */
#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define SIZE 8192

static pthread_mutexattr_t attributes(int robust) {
  pthread_mutexattr_t attributes;
  CHECK(pthread_mutexattr_init(&attributes) == 0);
  CHECK(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  CHECK(pthread_mutexattr_setrobust(&attributes, robust) == 0);
  return attributes;
}

static void use(pthread_mutex_t *mutex) {
  CHECK(pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
}

static void *lock_and_end(void *mutex) {
  CHECK(pthread_mutex_lock(mutex) == 0);
  return NULL;
}

/* A child locks it and is killed. */
static void be_left(pthread_mutex_t *mutex) {
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(pthread_mutex_lock(mutex) == 0);
    raise(SIGKILL);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

int main(int argc, char **argv) {
  CHECK(argc == 2 || argc == 3);
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  char *object = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  char *other = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(object != MAP_FAILED && other != MAP_FAILED && shm_unlink(argv[1]) == 0);
  pthread_mutexattr_t robust = attributes(PTHREAD_MUTEX_ROBUST);
  pthread_mutexattr_t stalled = attributes(PTHREAD_MUTEX_STALLED);
  pthread_mutex_t *here = (pthread_mutex_t *)(object + 4096 + 64);
  CHECK(pthread_mutex_init(here, NULL) == 0 && pthread_mutex_init(here, &stalled) == 0);
  use(here);
  CHECK(pthread_mutex_consistent(here) == EINVAL);
  pthread_mutex_t *elsewhere = (pthread_mutex_t *)other;
  CHECK(pthread_mutex_init(elsewhere, &robust) == 0);
  use(elsewhere);
  be_left(elsewhere);
  CHECK(pthread_mutex_lock(elsewhere) == EOWNERDEAD);

  CHECK(pthread_mutex_init(here, &robust) == 0);
  use(here);
  CHECK(pthread_mutex_unlock(here) == EPERM);
  CHECK(pthread_mutex_lock(here) == 0 && pthread_mutex_trylock(here) == EBUSY);
  CHECK(pthread_mutex_unlock(here) == 0);
  be_left(here);
  struct timespec begin, end;
  CHECK(clock_gettime(CLOCK_MONOTONIC, &begin) == 0);
  CHECK(pthread_mutex_lock(here) == EOWNERDEAD);
  CHECK(clock_gettime(CLOCK_MONOTONIC, &end) == 0);
  double took = end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9;
  CHECK(argc == 2 || took < atof(argv[2]));
  CHECK(pthread_mutex_consistent(here) == 0 && pthread_mutex_unlock(here) == 0);
  use(here);

  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, lock_and_end, here) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(pthread_mutex_lock(here) == EOWNERDEAD && pthread_mutex_consistent(here) == 0);
  CHECK(pthread_mutex_unlock(here) == 0);

  be_left(here);
  CHECK(pthread_mutex_lock(here) == EOWNERDEAD && pthread_mutex_unlock(here) == 0);
  CHECK(pthread_mutex_lock(here) == ENOTRECOVERABLE && pthread_mutex_trylock(here) == ENOTRECOVERABLE);
  CHECK(pthread_mutex_destroy(here) == 0);
  return 0;
}
