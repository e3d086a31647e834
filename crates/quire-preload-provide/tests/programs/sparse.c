/* Touches one page in each extent of a mapping, says so, and waits until its
 * input ends.  Argument: extents. */
#include "common.h"

int main(int argc, char **argv) {
  size_t extents = argument(argc, argv, 1, 64);
  char *memory = map_anon(extents * EXTENT);
  for (size_t i = 0; i < extents; i++)
    stamp_range(memory + i * EXTENT + i % 512 * PAGE, PAGE, i);
  puts("ready");
  fflush(stdout);
  char byte;
  CHECK(read(0, &byte, 1) == 0);
  for (size_t i = 0; i < extents; i++)
    check_range(memory + i * EXTENT + i % 512 * PAGE, PAGE, i);
  return 0;
}
