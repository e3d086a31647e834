/* A small program; it says how many KiB it has in memory.  Argument: rss, or nothing to be said. */
#include "common.h"

int main(int argc, char **argv) {
  char *block = malloc(MIB(1));
  CHECK(block != NULL);
  memset(block, 1, MIB(1));
  if (argc > 1 && strcmp(argv[1], "rss") == 0) {
    /* Exact; what /proc/self/status says is not. */
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[200];
    size_t kib = 0;
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL)
      if (sscanf(line, "Rss: %zu", &kib) == 1)
        printf("%zu\n", kib);
    CHECK(fclose(file) == 0 && kib > 0);
  }
  return block[77] != 1;
}
