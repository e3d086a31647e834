/* A program with an allocator of its own, that it defines itself: blocks are mappings, in part a header. */
#include "promise.h"

void *malloc(size_t size) {
  char *at = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return NULL;
  *(size_t *)at = size;
  return at + PAGE;
}

void free(void *block) {
  if (block != NULL)
    munmap((char *)block - PAGE, *(size_t *)((char *)block - PAGE) + PAGE);
}

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void *realloc(void *block, size_t size) {
  void *new = malloc(size);
  if (new != NULL && block != NULL) {
    size_t old = *(size_t *)((char *)block - PAGE);
    memcpy(new, block, old < size ? old : size);
    free(block);
  }
  return new;
}

int main(void) {
  size_t len = MIB(80);
  char *block = malloc(len);
  CHECK(block != NULL);
  stamp_range(block, len, 3);
  CHECK(!has_helper() || wait_for_helper(1, 5));
  for (; len < MIB(160); len += MIB(16)) {
    block = realloc(block, len + MIB(16));
    CHECK(block != NULL);
    check_range(block, len, 3);
    stamp_range(block + len, MIB(16), 3 + len / PAGE);
  }
  char *text = strdup("text");
  CHECK(text != NULL && strcmp(text, "text") == 0);
  free(text);
  free(block);
  puts("defines ok");
  return 0;
}
