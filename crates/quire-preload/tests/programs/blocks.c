/* Blocks of some MiB that grow and shrink, of whatever allocator there is, between memory that the library advises. */
#include "promise.h"

/* In order and slowly, so that the library sees it coming. */
static void fill(char *memory, size_t len) {
  for (size_t at = 0; at < len; at += EXTENT) {
    stamp_range(memory + at, EXTENT, 1 + at / PAGE);
    sleep_ms(2);
  }
}

int main(void) {
  size_t len = MIB(20);
  char *above = map_anon(MIB(96));
  char *block = malloc(len);
  CHECK(block != NULL);
  memset(block, 3, len);
  char *below = map_anon(MIB(96));
  fill(above, MIB(96));
  fill(below, MIB(96));
  for (int round = 0; round < 8; round++) {
    size_t more = len + MIB(4);
    block = realloc(block, more);
    CHECK(block != NULL && block[0] == 3 && block[len - 1] == 3);
    memset(block + len, 3, MIB(4));
    len = more;
    free(strdup("small"));
  }
  block = realloc(block, MIB(2));
  CHECK(block != NULL && block[MIB(2) - 1] == 3);
  free(block);
  check_range(above, MIB(96), 1);
  check_range(below, MIB(96), 1);
  puts("blocks ok");
  return 0;
}
