/* A program whose use of memory changes from sparse to dense; in the end it holds
 * 64 MiB that it uses densely and waits for the end of its input.  Argument: how
 * the memory came to be.
 *
 * again   one extent is given up and touched again, many times
 * heap    blocks of the allocator, sparse for long, then dense
 * mapped  the last of several mappings, of which the earlier ones were sparse
 * grown   the same, and the last one is made larger
 * kept    blocks of the allocator that were sparse, and then one that stays */
#include "common.h"

static const size_t size = MIB(64);

static void use_sparsely(char *memory, size_t length, uint64_t value) {
  for (size_t at = 0; at < length; at += EXTENT)
    stamp(memory + at, value);
}

static void sparse_mappings(size_t length) {
  for (int i = 1; i <= 20; i++) {
    char *memory = map_anon(length);
    use_sparsely(memory, length, i);
    CHECK(munmap(memory, length) == 0);
  }
}

static void sparse_blocks(int count) {
  for (int i = 1; i <= count; i++) {
    char *block = malloc(size);
    CHECK(block != NULL);
    use_sparsely(block, size, i);
    free(block);
  }
}

static char *dense(const char *how) {
  if (strcmp(how, "again") == 0) {
    char *memory = map_anon(size);
    for (int i = 1; i <= 300; i++) {
      stamp(memory + EXTENT, i);
      CHECK(madvise(memory + EXTENT, EXTENT, MADV_DONTNEED) == 0);
      CHECK_STAMP(memory + EXTENT, 0);
      CHECK(madvise(memory + EXTENT, EXTENT, MADV_DONTNEED) == 0);
    }
    return memory;
  }
  if (strcmp(how, "mapped") == 0) {
    sparse_mappings(size);
    return map_anon(size);
  }
  if (strcmp(how, "grown") == 0) {
    sparse_mappings(MIB(4));
    char *memory = map_anon(MIB(4));
    memory = mremap(memory, MIB(4), size, MREMAP_MAYMOVE);
    CHECK(memory != MAP_FAILED);
    return memory;
  }
  sparse_blocks(400);
  for (int i = 1; strcmp(how, "heap") == 0 && i <= 6; i++) {
    char *block = malloc(size);
    CHECK(block != NULL);
    memset(block, i, size);
    free(block);
  }
  char *block = malloc(size);
  CHECK(block != NULL);
  return block;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  /* A process is managed once it has asked for some memory. */
  char *first = map_anon(MIB(32));
  CHECK(munmap(first, MIB(32)) == 0);
  char *memory = dense(argv[1]);
  /* What is given up later must not be what is measured. */
  size_t start = -(uintptr_t)memory % PAGE, length = size - PAGE;
  for (size_t at = 0; at < length / EXTENT * EXTENT; at += EXTENT) {
    stamp_range(memory + start + at, EXTENT, 1 + at / PAGE);
    sleep_ms(5);
  }
  puts("ready");
  fflush(stdout);
  char line[80];
  CHECK(read(0, line, sizeof line) == 0);
  check_range(memory + start, length / EXTENT * EXTENT, 1);
  return 0;
}
