/* Memory that a program gives up in parts reads as zeros, whatever has become
 * of its page tables before: pages that a fork or the kernel has unmapped hold
 * something all the same, and so do pages that were written while their extent
 * was still being prepared.  Argument: rounds of the latter. */
#define _GNU_SOURCE
#include "common.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

#define EXTENTS 8
#define USED 100
#define FROM 10
#define TO 60

static char *sparse_extents(void) {
  char *memory = map_anon(EXTENTS * EXTENT);
  for (size_t i = 0; i < EXTENTS; i++)
    stamp_range(memory + i * EXTENT, USED * PAGE, 1000 * (i + 1));
  return memory;
}

/* Gives up a part of what each extent uses. */
static void discard_part(char *memory) {
  for (size_t i = 0; i < EXTENTS; i++) {
    char *extent = memory + i * EXTENT;
    CHECK(madvise(extent + FROM * PAGE, (TO - FROM) * PAGE, MADV_DONTNEED) == 0);
    check_range(extent, FROM * PAGE, 1000 * (i + 1));
    check_zero_range(extent + FROM * PAGE, (TO - FROM) * PAGE);
    check_range(extent + TO * PAGE, (USED - TO) * PAGE, 1000 * (i + 1) + TO);
    check_zero_range(extent + USED * PAGE, EXTENT - USED * PAGE);
  }
  CHECK(munmap(memory, EXTENTS * EXTENT) == 0);
}

static void after_fork(void) {
  char *memory = sparse_extents();
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0)
    _exit(0);
  reap(child, 0);
  sleep_ms(300); /* the memory is taken back */
  discard_part(memory);
}

static void after_pageout(void) {
  char *memory = sparse_extents();
  sleep_ms(20);
  (void)madvise(memory, EXTENTS * EXTENT, MADV_PAGEOUT);
  discard_part(memory);
}

/* Writes and gives up again at once, while the pager prepares what follows. */
static void while_prepared(size_t rounds) {
  for (size_t round = 0; round < rounds; round++) {
    char *memory = map_anon(EXTENTS * EXTENT);
    for (size_t i = 0; i < EXTENTS; i++) {
      char *page = memory + i * EXTENT + i * PAGE;
      stamp(page, round + i + 1);
      CHECK(madvise(page, PAGE, MADV_DONTNEED) == 0);
      CHECK_STAMP(page, 0);
    }
    CHECK(munmap(memory, EXTENTS * EXTENT) == 0);
  }
}

int main(int argc, char **argv) {
  after_fork();
  puts("after a fork ok");
  after_pageout();
  puts("after pageout ok");
  while_prepared(argument(argc, argv, 1, 200));
  puts("while prepared ok");
  return 0;
}
