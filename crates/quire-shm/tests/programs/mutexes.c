/* Makes mutexes in shared memory: robust ones are refused there, and nowhere else.
 *
 *     mutexes NAME */
#include "common.h"

#include <pthread.h>

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

int main(int argc, char **argv) {
  CHECK(argc == 2);
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  char *object = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  char *other = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(object != MAP_FAILED && other != MAP_FAILED && shm_unlink(argv[1]) == 0);
  pthread_mutexattr_t robust = attributes(PTHREAD_MUTEX_ROBUST);
  pthread_mutexattr_t stalled = attributes(PTHREAD_MUTEX_STALLED);
  pthread_mutex_t *here = (pthread_mutex_t *)(object + 4096 + 64);
  CHECK(pthread_mutex_init(here, &robust) == ENOTSUP);
  CHECK(pthread_mutex_init(here, NULL) == 0 && pthread_mutex_init(here, &stalled) == 0);
  use(here);
  CHECK(pthread_mutex_init((pthread_mutex_t *)other, &robust) == 0);
  use((pthread_mutex_t *)other);
  return 0;
}
