/* A program that uses its memory, says so, and waits until its input ends, so that a test can look at it from
 * outside.  Argument: MiB. */
#include "common.h"

int main(int argc, char **argv) {
  size_t len = MIB(argument(argc, argv, 1, 256));
  char *memory = map_anon(len);
  stamp_range(memory, len, 1);
  puts("ready");
  fflush(stdout);
  char byte;
  while (read(0, &byte, 1) > 0)
    ;
  check_range(memory, len, 1);
  return 0;
}
