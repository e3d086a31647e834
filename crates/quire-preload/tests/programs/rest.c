/* A program that touches one page in each of many extents.  Where reservations
 * are limited, most of these touches must not be reported one by one: a thread
 * that waits for a report gives up its processor.  Argument: extents. */
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
