/* A program that maps shared memory and forks: parent and children add to one number, and so
 * do those of another node.
 *
 *     forks NAME ADDERS   ADDERS: of all nodes, counting parents
 *
 * Children end in every way that a program has. */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>

#define PAGE 4096
#define SIZE (4 * PAGE)
#define CHILDREN 3
#define TIMES 300

struct shared {
  atomic_int ready;
  atomic_int done;
  _Alignas(PAGE) atomic_int sum;
  _Alignas(PAGE) char hole[PAGE];
  _Alignas(PAGE) char to_read[PAGE];
};

static void wait_for(atomic_int *word, int value) {
  for (int i = 0; atomic_load(word) < value; i++) {
    CHECK(i < 20000);
    usleep(1000);
  }
}

static void add(struct shared *shared, int adders) {
  atomic_fetch_add(&shared->ready, 1);
  wait_for(&shared->ready, adders);
  for (int i = 0; i < TIMES; i++)
    atomic_fetch_add(&shared->sum, 1);
  atomic_fetch_add(&shared->done, 1);
}

static void *idle(void *stop) {
  while (!atomic_load((atomic_int *)stop))
    free(malloc(10000));
  return NULL;
}

static void child(int which, struct shared *shared, int adders) {
  int pipes[2];
  CHECK(pipe(pipes) == 0);
  /* What the parent made of its mapping. */
  FAILS(write(pipes[1], shared->hole, 1) < 0, EFAULT);
  CHECK(write(pipes[1], "x", 1) == 1);
  FAILS(read(pipes[0], shared->to_read, 1) < 0, EFAULT);
  CHECK(shared->to_read[0] == 'r');
  if (which == 1) {
    /* A grandchild does it. */
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0) {
      int status;
      CHECK(waitpid(pid, &status, 0) == pid);
      _exit(WEXITSTATUS(status));
    }
  }
  add(shared, adders);
  if (which == 0)
    _exit(0);
  if (which == 1)
    exit(0);
  CHECK(munmap(shared, SIZE) == 0);
  _exit(0);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  int adders = atoi(argv[2]);
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  struct shared *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(shared != MAP_FAILED);
  shared->to_read[0] = 'r';
  CHECK(munmap(shared->hole, PAGE) == 0);
  CHECK(mprotect(shared->to_read, PAGE, PROT_READ) == 0);
  atomic_int stop = 0;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, idle, &stop) == 0);
  pid_t pids[CHILDREN];
  for (int which = 0; which < CHILDREN; which++) {
    pids[which] = fork();
    CHECK(pids[which] >= 0);
    if (pids[which] == 0)
      child(which, shared, adders);
  }
  add(shared, adders);
  for (int which = 0; which < CHILDREN; which++) {
    int status;
    CHECK(waitpid(pids[which], &status, 0) == pids[which] && status == 0);
  }
  atomic_store(&stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  wait_for(&shared->done, adders);
  CHECK(atomic_load(&shared->sum) == adders * TIMES);
  /* A program that was started from here, by vfork, does not end for its parent. */
  CHECK(system("true") == 0);
  printf("%d\n", atomic_load(&shared->sum));
  return 0;
}
