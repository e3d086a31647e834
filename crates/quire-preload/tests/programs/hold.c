/* Fills memory, says so, and waits until its input ends, so that a test can
 * look at the process from outside.  Argument: MiB mapped and malloc'ed. */
#include "common.h"

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 64));
  /* A process is managed once it has asked for some memory. */
  char *first = map_anon(MIB(32));
  CHECK(munmap(first, MIB(32)) == 0);
  char *memory = map_anon(size);
  stamp_range(memory, size, 1);
  char *heap = malloc(size);
  CHECK(heap != NULL);
  memset(heap, 1, size);
  puts("ready");
  fflush(stdout);
  char byte;
  CHECK(read(0, &byte, 1) == 0);
  check_range(memory, size, 1);
  return 0;
}
