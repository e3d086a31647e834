/* A program that touches one page in each of many extents.  Where reservations
 * are limited, most of these touches must not be reported one by one: a thread
 * that waits for a report gives up its processor.  What rests meanwhile must
 * behave like any other memory.  Argument: extents. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/resource.h>

static long waits(void) {
  struct rusage usage;
  CHECK(getrusage(RUSAGE_THREAD, &usage) == 0);
  return usage.ru_nvcsw;
}

static void check_sparse(const char *memory, size_t extents, uint64_t value) {
  for (size_t i = 0; i < extents; i++)
    for (size_t page = i % 511; page < i % 511 + 2; page++)
      CHECK_STAMP(memory + i * EXTENT + page * PAGE, page == i % 511 ? value + i : 0);
}

/* Both sides of a fork write to touched and untouched memory. */
static void check_fork(char *memory, size_t extents) {
  pid_t child = fork();
  CHECK(child >= 0);
  uint64_t value = child == 0 ? 30000 : 20000;
  for (size_t i = 0; i < extents; i += 3)
    stamp(memory + i * EXTENT + (i + 3) % 512 * PAGE, value + i);
  for (size_t i = 0; i < extents; i += 3)
    CHECK_STAMP(memory + i * EXTENT + (i + 3) % 512 * PAGE, value + i);
  check_sparse(memory, extents, 7);
  if (child == 0)
    _exit(0);
  reap(child, 0);
}

/* Memory that rests moves, grows, loses a part and changes its protection. */
static void check_calls(size_t extents) {
  char *memory = map_anon(extents * EXTENT);
  for (size_t i = 0; i < extents / 2; i++)
    stamp(memory + i * EXTENT + i % 511 * PAGE, 7 + i);
  check_sparse(memory, extents / 2, 7);
  memory = mremap(memory, extents * EXTENT, 2 * extents * EXTENT, MREMAP_MAYMOVE);
  CHECK(memory != MAP_FAILED);
  check_sparse(memory, extents / 2, 7);
  check_zero_range(memory + extents * EXTENT, extents * EXTENT);
  CHECK(mprotect(memory, 3 * PAGE, PROT_READ) == 0);
  CHECK(munmap(memory + 5 * EXTENT + PAGE, 3 * EXTENT) == 0);
  check_sparse(memory, 5, 7);
  CHECK(mprotect(memory, 3 * PAGE, PROT_READ | PROT_WRITE) == 0);
  sleep_ms(300);
  check_sparse(memory, 5, 7);
  stamp_range(memory + 9 * EXTENT, EXTENT, 11);
  check_range(memory + 9 * EXTENT, EXTENT, 11);
  CHECK(munmap(memory, 2 * extents * EXTENT) == 0);
}

int main(int argc, char **argv) {
  size_t extents = argument(argc, argv, 1, 1000);
  char *memory = map_anon(extents * EXTENT);
  for (size_t i = 0; i < 100; i++) /* until reservations have failed */
    stamp(memory + i * EXTENT + i % 511 * PAGE, 7 + i);
  long before = waits();
  for (size_t i = 100; i < extents; i++)
    stamp(memory + i * EXTENT + i % 511 * PAGE, 7 + i);
  long waited = waits() - before;
  if (waited > (long)extents / 4)
    FAIL("%ld waits for %zu touches", waited, extents - 100);
  check_sparse(memory, extents, 7);
  puts("sparse ok");
  check_fork(memory, extents);
  check_calls(64);
  puts("calls ok");

  sleep_ms(400); /* the rests end */
  check_sparse(memory, extents, 7);
  CHECK(madvise(memory, extents * EXTENT, MADV_DONTNEED) == 0);
  for (size_t i = 0; i < extents; i++)
    stamp(memory + i * EXTENT + i % 511 * PAGE, 70000 + i);
  check_sparse(memory, extents, 70000);
  stamp_range(memory, 8 * EXTENT, 3);
  check_range(memory, 8 * EXTENT, 3);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    stamp_range(memory, 8 * EXTENT, 5);
    _exit(0);
  }
  reap(child, 0);
  check_range(memory, 8 * EXTENT, 3);
  puts("rest ok");
  return 0;
}
