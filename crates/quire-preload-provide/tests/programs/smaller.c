/* Fills many mappings that are smaller than a superpage, in all sizes from one
 * page to 1 MiB, says so, and waits until its input ends.  Argument: MiB. */
#include "common.h"

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 64)), used = 0, count = 0;
  /* A process is managed once it has asked for some memory. */
  char *first = map_anon(MIB(32));
  CHECK(munmap(first, MIB(32)) == 0);
  static char *piece[4096];
  static size_t length[4096];
  while (used < size) {
    size_t len = (PAGE << count % 9) + PAGE * (count % 3);
    CHECK(count < 4096);
    piece[count] = map_anon(len);
    length[count] = len;
    stamp_range(piece[count], len, count);
    used += len;
    count++;
  }
  /* Holes, so that what is left lies in the middle of what was mapped. */
  for (size_t i = 0; i < count; i += 5)
    CHECK(munmap(piece[i], length[i]) == 0);
  puts("ready");
  fflush(stdout);
  char byte;
  CHECK(read(0, &byte, 1) == 0);
  for (size_t i = 0; i < count; i++)
    if (i % 5 != 0)
      check_range(piece[i], length[i], i);
  puts("smaller ok");
  return 0;
}
