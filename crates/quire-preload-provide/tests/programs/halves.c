/* Fills memory in two halves, says so after each, and waits for a line of input
 * between them and for its end after them, so that a test can look at the
 * process and change its settings.  Argument: MiB of a half. */
#include "common.h"

static void fill(char *memory, size_t size, uint64_t value) {
  stamp_range(memory, size, value);
  puts("filled");
  fflush(stdout);
}

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 64));
  /* A process is managed once it has asked for some memory. */
  char *first = map_anon(MIB(32));
  CHECK(munmap(first, MIB(32)) == 0);
  char *before = map_anon(size);
  fill(before, size, 1);
  char line[80];
  CHECK(read(0, line, sizeof line) > 0);
  char *after = map_anon(size);
  fill(after, size, 2);
  CHECK(read(0, line, sizeof line) == 0);
  check_range(before, size, 1);
  check_range(after, size, 2);
  return 0;
}
