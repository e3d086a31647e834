/* Mappings that come and go where files were mapped: what is promoted must
 * never be taken for what was there before.  Threads map files, use them long
 * enough to be noticed, and put private memory in their place in every way
 * that there is; one forks meanwhile.  Argument: milliseconds. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>

#define SIZE MIB(4)
#define THREADS 3

static double end;
static unsigned long rounds;

static int new_file(unsigned number) {
  char name[32];
  snprintf(name, sizeof name, "churn.%u", number);
  int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
  CHECK(fd >= 0 && unlink(name) == 0);
  static __thread char page[4096];
  for (size_t i = 0; i < SIZE / PAGE; i++) {
    stamp(page, 1000 + i);
    CHECK(write(fd, page, PAGE) == (ssize_t)PAGE);
  }
  CHECK(fsync(fd) == 0);
  return fd;
}

/* Small pieces, which are not managed, in place of the file. */
static void replace(char *memory, unsigned way) {
  if (way % 3 == 0)
    CHECK(munmap(memory, SIZE) == 0);
  for (size_t at = 0; at < SIZE; at += MIB(1)) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (way % 3 == 2) {
      char *piece = map_anon(MIB(1));
      stamp_range(piece, MIB(1), 5000 + at);
      CHECK(mremap(piece, MIB(1), MIB(1), MREMAP_MAYMOVE | MREMAP_FIXED, memory + at) == memory + at);
    } else {
      how = way % 3 == 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE : how;
      char *piece = mmap(memory + at, MIB(1), PROT_READ | PROT_WRITE, how, -1, 0);
      if (piece == MAP_FAILED && way % 3 == 0) {
        /* Another thread was quicker. */
        for (size_t before = 0; before < at; before += MIB(1))
          CHECK(munmap(memory + before, MIB(1)) == 0);
        return;
      }
      CHECK(piece == memory + at);
      stamp_range(piece, MIB(1), 5000 + at);
    }
  }
  for (unsigned look = 0; look < 20; look++) {
    for (size_t at = 0; at < SIZE; at += MIB(1))
      check_range(memory + at, MIB(1), 5000 + at);
    sleep_ms(1);
  }
  CHECK(munmap(memory, SIZE) == 0);
}

static void *work(void *argument) {
  uint64_t state = (uint64_t)(uintptr_t)argument;
  unsigned number = (unsigned)state;
  while (seconds() < end) {
    int fd = new_file(number);
    int kind = below(&state, 2) ? MAP_SHARED : MAP_PRIVATE;
    char *memory = mmap(NULL, SIZE, PROT_READ, kind, fd, 0);
    CHECK(memory != MAP_FAILED);
    double until = seconds() + 0.3 + (double)below(&state, 1500) * 1e-3;
    while (seconds() < until) {
      check_range(memory, SIZE, 1000);
      sleep_ms(1);
    }
    if (kind == MAP_PRIVATE && below(&state, 2)) {
      CHECK(mprotect(memory, SIZE, PROT_READ | PROT_WRITE) == 0);
      stamp_range(memory, SIZE, 7000);
      for (unsigned look = 0; look < 20; look++, sleep_ms(1))
        check_range(memory, SIZE, 7000);
    }
    CHECK(close(fd) == 0);
    replace(memory, (unsigned)below(&state, 3));
    __atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

int main(int argc, char **argv) {
  end = seconds() + (double)argument(argc, argv, 1, 3000) * 1e-3;
  char *first = map_anon(MIB(32));
  CHECK(munmap(first, MIB(32)) == 0);
  pthread_t threads[THREADS];
  for (unsigned i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
  while (seconds() < end) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      char *more = map_anon(MIB(20));
      stamp_range(more, MIB(20), 1);
      int fd = new_file(99);
      char *memory = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
      check_range(memory, SIZE, 1000);
      _exit(0);
    }
    reap(child, 0);
    sleep_ms(50);
  }
  for (unsigned i = 0; i < THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  puts(rounds > 0 ? "done" : "nothing was done");
  return 0;
}
