/* Writes to shared memory, and ends or is stopped in the midst of it.
 *
 *     losing NAME write SIZE SIGNAL   makes it, writes 'x' everywhere, and raises the signal
 *     losing NAME make                makes a mutex, and the number that it guards 0
 *     losing NAME hold                takes the mutex, prints its process and "has it", waits for a line, adds 1 to
 *                                     the number that it read before, and prints what the unlock says
 *     losing NAME add N               takes the mutex N times, and adds 1 each time
 *     losing NAME show                prints the number
 *     losing NAME count SECONDS       adds 1 to another word again and again; prints how often
 *     losing NAME counted             prints that word */
#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

struct shared {
  pthread_mutex_t mutex;
  char rest[256 - sizeof(pthread_mutex_t)];
  volatile long number;
  _Atomic long counted;
};

static void *mapped(int fd, size_t size) {
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

static void hold(struct shared *shared) {
  CHECK(pthread_mutex_lock(&shared->mutex) == 0);
  long was = shared->number;
  printf("%d\nhas it\n", (int)getpid());
  fflush(stdout);
  CHECK(getchar() == '\n');
  shared->number = was + 1;
  int unlocked = pthread_mutex_unlock(&shared->mutex);
  printf("%s\n", unlocked == 0 ? "done" : unlocked == ENOTRECOVERABLE ? "not recoverable" : "?");
}

static void count(struct shared *shared, double seconds) {
  struct timespec begin, now;
  long count = 0;
  CHECK(clock_gettime(CLOCK_MONOTONIC, &begin) == 0);
  printf("begins\n");
  fflush(stdout);
  do {
    atomic_fetch_add(&shared->counted, 1);
    count++;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  } while (now.tv_sec - begin.tv_sec + (now.tv_nsec - begin.tv_nsec) / 1e9 < seconds);
  printf("%ld\n", count);
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  const char *what = argv[2];
  int makes = !strcmp(what, "write") || !strcmp(what, "make");
  int fd = shm_open(argv[1], O_RDWR | (makes ? O_CREAT : 0), 0600);
  CHECK(fd >= 0);
  if (!strcmp(what, "write")) {
    size_t size = atol(argv[3]);
    CHECK(argc == 5 && ftruncate(fd, size) == 0);
    memset(mapped(fd, size), 'x', size);
    raise(atoi(argv[4]));
    return 1;
  }
  if (makes) CHECK(ftruncate(fd, 4096) == 0);
  struct shared *shared = mapped(fd, 4096);
  if (makes) {
    pthread_mutexattr_t attributes;
    CHECK(pthread_mutexattr_init(&attributes) == 0);
    CHECK(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    CHECK(pthread_mutex_init(&shared->mutex, &attributes) == 0);
    shared->number = 0;
  } else if (!strcmp(what, "hold")) {
    hold(shared);
  } else if (!strcmp(what, "add")) {
    for (int i = 0; i < atoi(argv[3]); i++) {
      CHECK(pthread_mutex_lock(&shared->mutex) == 0);
      shared->number = shared->number + 1;
      CHECK(pthread_mutex_unlock(&shared->mutex) == 0);
    }
  } else if (!strcmp(what, "count")) {
    count(shared, atof(argv[3]));
  } else {
    printf("%ld\n", !strcmp(what, "show") ? shared->number : atomic_load(&shared->counted));
  }
  return 0;
}
