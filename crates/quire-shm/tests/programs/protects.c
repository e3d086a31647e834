/* Changes what pages of an object allow, again and again, while its server is killed and started anew.
 *
 *     protects NAME   says "begins", and ends at a line */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>

#define PAGE 4096
#define THREADS 4
#define EACH 4
#define SIZE (THREADS * EACH * PAGE)

static atomic_int ends;

/* What a page allows is what it was told last. */
static void *change(void *first) {
  int zeros = open("/dev/zero", O_RDONLY);
  CHECK(zeros >= 0);
  while (!ends) {
    for (int page = 0; page < EACH; page++) {
      unsigned char *at = (unsigned char *)first + page * PAGE;
      CHECK(mprotect(at, PAGE, PROT_READ) == 0);
      FAILS(read(zeros, at + 1, 1) < 0, EFAULT);
      /* A write would wait for the server. */
      CHECK(mprotect(at, PAGE, PROT_READ | PROT_WRITE) == 0);
    }
  }
  CHECK(read(zeros, (unsigned char *)first + 1, 1) == 1);
  return NULL;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  unsigned char *memory = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  /* Each page is a mapping of its own, which is replaced for itself. */
  for (int at = 0; at < SIZE; at += PAGE) {
    int fixed = MAP_SHARED | MAP_FIXED;
    CHECK(mmap(memory + at, PAGE, PROT_READ | PROT_WRITE, fixed, fd, at) == memory + at);
  }
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, change, memory + i * EACH * PAGE) == 0);
  say("begins");
  hear();
  ends = 1;
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  return 0;
}
