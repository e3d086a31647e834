/* The hugetlb pool shrinks while a program has pages of it, and others take what it gives up: what is touched again
 * must be there, if not from the pool. */
#include "common.h"

#define LENGTH MIB(48)
/* Large enough to be returned to the pool; the rest is zeroed, and made unreadable meanwhile. */
#define LARGE MIB(32)
#define SMALL MIB(4)
#define CLOSED MIB(2)
#define GIVEN_UP (LARGE + SMALL + CLOSED)

static const char *const pool = "/proc/sys/vm/nr_hugepages";

static int pool_size(void) {
  int size = 0;
  FILE *file = fopen(pool, "r");
  if (file) {
    CHECK(fscanf(file, "%d", &size) == 1);
    fclose(file);
  }
  return size;
}

/* Only root may; for others the pool stays. */
static void set_pool_size(int size) {
  FILE *file = fopen(pool, "w");
  if (file) {
    fprintf(file, "%d", size);
    fclose(file);
  }
}

static void give_up(char *memory) {
  CHECK(madvise(memory, LARGE, MADV_DONTNEED) == 0);
  CHECK(madvise(memory + LARGE, SMALL, MADV_DONTNEED) == 0);
  char *closed = memory + LARGE + SMALL;
  CHECK(mprotect(closed, CLOSED, PROT_NONE) == 0);
  CHECK(madvise(closed, CLOSED, MADV_DONTNEED) == 0);
  CHECK(mprotect(closed, CLOSED, PROT_READ | PROT_WRITE) == 0);
}

/* What is free in the pool, for as long as the process lives. */
static void take_the_rest(void) {
  for (;;) {
    char *page = mmap(NULL, MIB(2), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (page == MAP_FAILED)
      return;
    page[0] = 1;
  }
}

int main(void) {
  char *memory = map_anon(LENGTH);
  stamp_range(memory, LENGTH, 7);
  int before = pool_size();
  /* Less than are in use. */
  set_pool_size(4);
  give_up(memory);
  take_the_rest();
  check_zero_range(memory, GIVEN_UP);
  check_range(memory + GIVEN_UP, LENGTH - GIVEN_UP, 7 + GIVEN_UP / PAGE);
  stamp_range(memory, GIVEN_UP, 8);
  check_range(memory, GIVEN_UP, 8);
  set_pool_size(before);
  puts("ok");
  return 0;
}
