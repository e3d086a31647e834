/* A mapping is replaced by others again and again, while a thread watches out for a moment at
 * which its addresses are free: then another thread's malloc might have got them.
 *
 *     replaced NAME */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#define PAGE 4096
#define SIZE (16 * PAGE)
#define ROUNDS 200

static unsigned char *place;
static atomic_int is_over;
static atomic_long looks;

/* Without the library's help. */
static void *watch(void *nothing) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  while (!is_over) {
    long at = syscall(SYS_mmap, place + 4 * PAGE, PAGE, PROT_NONE, flags, -1, 0);
    CHECK(at == -1 && errno == EEXIST);
    looks++;
  }
  return nothing;
}

static void put(size_t size, int flags, int fd) {
  CHECK(mmap(place, size, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == place);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  int segment = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
  CHECK(segment >= 0);
  void *first = shmat(segment, NULL, 0);
  CHECK(first != (void *)-1 && shmctl(segment, IPC_RMID, NULL) == 0);

  place = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(place != MAP_FAILED);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, watch, NULL) == 0);
  for (int i = 1; i <= ROUNDS; i++) {
    place[5] = i;
    put(SIZE, MAP_SHARED, fd);
    CHECK(place[5] == i % 256);
    put(SIZE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    CHECK(place[5] == 0);
    put(SIZE, MAP_SHARED, fd);
    CHECK(shmat(segment, place, SHM_REMAP) == place);
    CHECK(place[5] == 0);
    put(SIZE, MAP_SHARED, fd);
    CHECK(place[5] == i % 256);
  }
  is_over = 1;
  CHECK(pthread_join(thread, NULL) == 0 && looks > ROUNDS);

  /* What was unmapped around it is free when the rest is replaced. */
  CHECK(munmap(place + 8 * PAGE, 8 * PAGE) == 0);
  put(8 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  unsigned char here[8];
  FAILS(mincore(place + 8 * PAGE, 8 * PAGE, here) < 0, ENOMEM);
  CHECK(munmap(place, 8 * PAGE) == 0 && shmdt(first) == 0);
  return 0;
}
