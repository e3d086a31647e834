/* More memory than the memory cgroup of the process holds, so that much of it is on
 * swap: contents, new touches, forks and discards are as ever.  Says "swapped", waits
 * for a byte, and checks once more, when the test may have ended the swap.
 * Arguments: MiB. */
#include "common.h"

static size_t swapped_bytes(void) {
  FILE *file = fopen("/proc/self/status", "r");
  CHECK(file != NULL);
  char line[256];
  size_t kib = 0;
  while (fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, "VmSwap:", 7) == 0)
      kib = strtoull(line + 7, NULL, 10);
  CHECK(fclose(file) == 0);
  return kib << 10;
}

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 96));
  char *memory = map_anon(size), *sparse = map_anon(size);
  stamp_range(memory, size, 1);
  /* Not in order, and the stock is on swap by now as well. */
  for (size_t page = 0; page < size / PAGE; page += 16)
    stamp(sparse + page * 7919 % (size / PAGE) * PAGE, 2);
  check_range(memory, size, 1);
  CHECK(swapped_bytes() > size / 8);

  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check_range(memory, size / 2, 1);
    stamp_range(memory, size / 4, 3);
    char *own = map_anon(size / 4);
    stamp_range(own, size / 4, 4);
    check_range(memory, size / 4, 3);
    check_range(own, size / 4, 4);
    _exit(0);
  }
  stamp_range(memory + size / 2, size / 4, 5);
  reap(child, 0);
  check_range(memory, size / 2, 1);
  check_range(memory + size / 2, size / 4, 5);
  CHECK(madvise(memory, size / 4, MADV_DONTNEED) == 0);
  check_zero_range(memory, size / 8);
  stamp_range(memory, size / 4, 6);
  CHECK(madvise(memory, size, MADV_PAGEOUT) == 0);
  char *moved = mremap(memory, size, size + PAGE, MREMAP_MAYMOVE);
  CHECK(moved != MAP_FAILED);
  CHECK_STAMP(moved + size, 0);
  puts("swapped");
  fflush(stdout);
  char byte;
  CHECK(read(0, &byte, 1) >= 0);
  check_range(moved, size / 4, 6);
  check_range(moved + size / 2, size / 4, 5);
  size_t stamped = 0;
  for (size_t page = 0; page < size / PAGE; page++)
    stamped += !stamp_differs(sparse + page * PAGE, 2);
  CHECK(stamped == size / PAGE / 16);
  char *fresh = map_anon(size / 4);
  stamp_range(fresh, size / 4, 7);
  check_range(fresh, size / 4, 7);
  puts("back");
  return 0;
}
