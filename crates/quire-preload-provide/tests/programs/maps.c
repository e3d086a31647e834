/* A program that uses as many mappings as the kernel allows (vm.max_map_count).
 * What needs no further mapping must go on working: first touches, dense and
 * sparse, and giving memory back; with a few left, forks. */
#include "common.h"

enum { EXTENTS = 24, SPARE = 8 };

static size_t max_map_count(void) {
  FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
  size_t count = 0;
  CHECK(file != NULL && fscanf(file, "%zu", &count) == 1);
  CHECK(fclose(file) == 0);
  return count;
}

/* Splits address space into mappings until the kernel refuses. */
static size_t use_up(char *space, size_t pages) {
  for (size_t page = 1; page < pages; page += 2)
    if (mprotect(space + page * PAGE, PAGE, PROT_READ) != 0) {
      CHECK(errno == ENOMEM);
      return page;
    }
  FAIL("there is no end to mappings");
}

/* Every second extent full, the others with one page. */
static void use(char *memory, uint64_t value) {
  for (size_t i = 0; i < EXTENTS; i++)
    if (i % 2 == 0)
      stamp_range(memory + i * EXTENT, EXTENT, value + i * 512);
    else
      stamp(memory + i * EXTENT + i * PAGE, value + i * 512);
}

static void check(char *memory, uint64_t value) {
  for (size_t i = 0; i < EXTENTS; i++)
    if (i % 2 == 0)
      check_range(memory + i * EXTENT, EXTENT, value + i * 512);
    else
      for (size_t page = i; page < i + 2; page++)
        CHECK_STAMP(memory + i * EXTENT + page * PAGE, page == i ? value + i * 512 : 0);
}

static void give_back(char *memory) {
  CHECK(madvise(memory, EXTENTS * EXTENT, MADV_DONTNEED) == 0);
  for (size_t i = 0; i < EXTENTS; i++)
    CHECK_STAMP(memory + i * EXTENT + i * PAGE, 0);
}

int main(void) {
  char *before = map_anon(EXTENTS * EXTENT), *after = map_anon(EXTENTS * EXTENT);
  use(before, 1);
  size_t pages = max_map_count() + 1024;
  char *space = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(space != MAP_FAILED);
  size_t used = use_up(space, pages);
  puts("no mapping is left");

  usleep(50000);
  check(before, 1);
  use(after, 100000);
  usleep(50000);
  check(after, 100000);
  puts("first touches ok");

  for (size_t page = used - 2, freed = 0; freed < SPARE; page -= 2, freed += 2)
    CHECK(mprotect(space + page * PAGE, PAGE, PROT_NONE) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check(before, 1);
    use(before, 5);
    check(before, 5);
    _exit(0);
  }
  use(before, 9);
  reap(child, 0);
  check(before, 9);
  check(after, 100000);
  puts("fork ok");

  usleep(200000);
  give_back(before);
  use(before, 13);
  check(before, 13);
  puts("given back ok");

  CHECK(munmap(space, pages * PAGE) == 0);
  CHECK(used > 1000);
  usleep(50000);
  check(before, 13);
  give_back(after);
  use(after, 17);
  check(after, 17);
  CHECK(munmap(before, EXTENTS * EXTENT) == 0 && munmap(after, EXTENTS * EXTENT) == 0);
  puts("maps ok");
  return 0;
}
