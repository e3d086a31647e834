/* A program that fits its memory cgroup only if the pages it did not touch
 * cost nothing: it touches one page in each 2 MiB, then fills other memory
 * densely. The test puts it into a cgroup that holds what it touches but not
 * what lies around it.  Arguments: MiB touched sparsely, MiB densely. */
#include "common.h"

int main(int argc, char **argv) {
  size_t sparse = MIB(argument(argc, argv, 1, 1024)), dense = MIB(argument(argc, argv, 2, 140));
  char *wide = map_anon(sparse);
  for (size_t offset = 0; offset < sparse; offset += EXTENT)
    stamp(wide + offset + offset / EXTENT % 512 * PAGE, offset + 1);
  puts("sparse done");

  /* Half by mmap, half by malloc in blocks of many sizes. */
  char *mapped = map_anon(dense / 2);
  stamp_range(mapped, dense / 2, 5);
  size_t count = 0, used = 0;
  uint64_t state = 9;
  static char *blocks[100000];
  static size_t sizes[100000];
  while (used < dense / 2) {
    size_t size = 2000 + below(&state, 30000);
    CHECK(count < 100000 && (blocks[count] = malloc(size)) != NULL);
    memset(blocks[count], (int)(count % 255) + 1, size);
    sizes[count++] = size;
    used += size;
  }
  puts("dense done");

  /* The sparse pages again, two more in each superpage. */
  for (size_t offset = 0; offset < sparse; offset += EXTENT) {
    size_t page = offset / EXTENT % 512;
    CHECK_STAMP(wide + offset + page * PAGE, offset + 1);
    CHECK_STAMP(wide + offset + (page + 1) % 512 * PAGE, 0);
    stamp(wide + offset + (page + 1) % 512 * PAGE, offset + 2);
    stamp(wide + offset + (page + 101) % 512 * PAGE, offset + 3);
  }
  for (size_t offset = 0; offset < sparse; offset += EXTENT) {
    size_t page = offset / EXTENT % 512;
    CHECK_STAMP(wide + offset + page * PAGE, offset + 1);
    CHECK_STAMP(wide + offset + (page + 1) % 512 * PAGE, offset + 2);
    CHECK_STAMP(wide + offset + (page + 101) % 512 * PAGE, offset + 3);
  }
  check_range(mapped, dense / 2, 5);
  for (size_t i = 0; i < count; i++) {
    char value = (char)(i % 255 + 1);
    CHECK(blocks[i][0] == value && blocks[i][sizes[i] / 2] == value && blocks[i][sizes[i] - 1] == value);
  }
  puts("pressure ok");
  return 0;
}
