/* What locks of the C library cost in shared memory: two processes hand over to each other by
 * semaphores, then both increment a word under one mutex for two seconds.
 *
 *   gcc -O2 -pthread -o locks examples/locks.c
 *   ./locks /name make 20000 & ./locks /name use 20000
 *
 * The one that makes the memory says when the other may begin. Each prints what it measured. */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SECONDS 2

struct memory {
  pthread_barrier_t both;
  pthread_mutex_t mutex;
  sem_t to[2];
  volatile long increments, handovers, last;
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

static void make(struct memory *memory) {
  pthread_barrierattr_t barrier;
  pthread_barrierattr_init(&barrier);
  pthread_barrierattr_setpshared(&barrier, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&memory->both, &barrier, 2);
  pthread_mutexattr_t mutex;
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&memory->mutex, &mutex);
  for (int number = 0; number < 2; number++)
    sem_init(&memory->to[number], 1, 0);
  puts("made");
  fflush(stdout);
}

static void hand_over(struct memory *memory, int me, int times) {
  double begin = now();
  for (int time = 0; time < times; time++) {
    if (me == 1)
      sem_wait(&memory->to[1]);
    sem_post(&memory->to[!me]);
    if (me == 0)
      sem_wait(&memory->to[0]);
  }
  if (me == 0)
    printf("semaphores: %.1f us for a handover\n", (now() - begin) / times / 2 * 1e6);
}

static void increment(struct memory *memory, int me) {
  long mine = 0;
  for (double begin = now(); now() - begin < SECONDS; mine++) {
    pthread_mutex_lock(&memory->mutex);
    memory->increments++;
    if (memory->last != me + 1) {
      memory->last = me + 1;
      memory->handovers++;
    }
    pthread_mutex_unlock(&memory->mutex);
  }
  pthread_barrier_wait(&memory->both);
  long all = memory->increments, handovers = memory->handovers;
  printf("mutex: %ld of %ld increments, %ld handovers\n", mine, all, handovers);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: locks /NAME make|use HANDOVERS\n");
    return 2;
  }
  int me = strcmp(argv[2], "make") != 0;
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(struct memory)) != 0) {
    perror(argv[1]);
    return 1;
  }
  struct memory *memory =
      mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    return 1;
  }
  if (me == 0)
    make(memory);
  pthread_barrier_wait(&memory->both);
  hand_over(memory, me, atoi(argv[3]));
  pthread_barrier_wait(&memory->both);
  increment(memory, me);
  return 0;
}
