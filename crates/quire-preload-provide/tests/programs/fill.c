/* Fills memory page by page, says so, and waits until its input ends.
 * Argument: MiB. */
#include "common.h"

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 64));
  char *memory = map_anon(size);
  stamp_range(memory, size, 1);
  puts("ready");
  fflush(stdout);
  char byte;
  CHECK(read(0, &byte, 1) == 0);
  check_range(memory, size, 1);
  return 0;
}
