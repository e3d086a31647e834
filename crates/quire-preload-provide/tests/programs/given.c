/* A program that fills some extents, so that the next ones are given to it
 * whole, and then uses one page in each of these. It fits its memory cgroup only
 * if what it does not use of them is taken back.  Arguments: extents filled,
 * extents used sparsely, MiB used densely in the end. */
#include "common.h"

int main(int argc, char **argv) {
  size_t filled = argument(argc, argv, 1, 8), sparse = argument(argc, argv, 2, 64);
  size_t dense = MIB(argument(argc, argv, 3, 140));
  char *memory = map_anon((filled + sparse) * EXTENT);
  for (size_t i = 0; i < filled; i++) {
    stamp_range(memory + i * EXTENT, EXTENT, 1 + i * 512);
    usleep(5000);
  }
  usleep(100000);
  char *given = memory + filled * EXTENT;
  for (size_t i = 0; i < sparse; i++)
    stamp(given + i * EXTENT + i % 512 * PAGE, i + 7);
  usleep(300000);
  puts("sparse done");

  char *other = map_anon(dense);
  for (size_t at = 0; at < dense; at += MIB(2)) {
    stamp_range(other + at, MIB(2), 3 + at / PAGE);
    usleep(2000);
  }
  puts("dense done");

  check_range(memory, filled * EXTENT, 1);
  for (size_t i = 0; i < sparse; i++)
    /* Two pages only: reading all would allocate them again. */
    for (size_t page = i % 512; page < i % 512 + 2; page++)
      CHECK_STAMP(given + i * EXTENT + page * PAGE, page == i % 512 ? i + 7 : 0);
  check_range(other, dense, 3);
  puts("given ok");
  return 0;
}
