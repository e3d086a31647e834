/* New memory is zero, whoever had its frames before: other runs of this program, which
 * fill theirs and leave it so, or this one before it gave them up.
 * Argument: MiB. */
#include "common.h"

static const char zeros[4096];

static void check_fresh(const char *memory, size_t pages) {
  for (size_t page = 0; page < pages; page++)
    if (memcmp(memory + page * PAGE, zeros, PAGE) != 0)
      FAIL("page %zu of %p is not zero", page, (const void *)memory);
}

/* Writes one byte into each page, by order or not, and finds nothing else there. */
static void write_first(char *memory, size_t pages) {
  for (size_t i = 0; i < pages; i++) {
    char *page = memory + i * 401 % pages * PAGE;
    page[i % PAGE] = 1;
    CHECK(memcmp(page, zeros, i % PAGE) == 0);
    CHECK(memcmp(page + i % PAGE + 1, zeros, PAGE - i % PAGE - 1) == 0);
  }
}

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 32)), pages = size / PAGE;
  for (int round = 0; round < 2; round++) {
    char *memory = map_anon(size);
    check_fresh(memory, pages / 2);
    write_first(memory + size / 2, pages / 2);
    memset(memory, 0xa5, size);
    CHECK(madvise(memory, size / 2, MADV_DONTNEED) == 0);
    check_fresh(memory, pages / 2);
    memset(memory, 0x5a, size);
    CHECK(munmap(memory, size) == 0);
  }
  char *block = calloc(1, size / 2);
  CHECK(block != NULL);
  check_fresh(block, size / 2 / PAGE);
  memset(block, 0xa5, size / 2);
  char *left = map_anon(size / 2);
  memset(left, 0xa5, size / 2);
  puts("fresh ok");
  return 0;
}
