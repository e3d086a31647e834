/* Has pages of every kind at known places, tells where, and waits for the end of its
 * input. One line for each: KIND ADDRESS BYTES. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define SUPER ((size_t)2 << 20)

/* Memory that begins at a superpage boundary, with nothing next to it. */
static char *memory(size_t size, int flags) {
  char *start = mmap(NULL, size + 3 * SUPER, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED)
    return NULL;
  start = (char *)(((uintptr_t)start + 2 * SUPER - 1) & ~(SUPER - 1));
  flags |= MAP_ANONYMOUS | MAP_FIXED;
  start = mmap(start, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  return start == MAP_FAILED ? NULL : start;
}

int main(void) {
  char *base = memory(8 * SUPER, MAP_PRIVATE);
  char *super = memory(2 * SUPER, MAP_PRIVATE);
  char *zero = memory(SUPER, MAP_PRIVATE);
  char *shared = memory(SUPER, MAP_SHARED);
  char *sparse = memory((size_t)1 << 40, MAP_PRIVATE | MAP_NORESERVE);
  if (!base || !super || !zero || !shared || !sparse)
    return 1;
  madvise(base, 8 * SUPER, MADV_NOHUGEPAGE);
  madvise(super, 2 * SUPER, MADV_HUGEPAGE);
  madvise(zero, SUPER, MADV_NOHUGEPAGE);
  madvise(shared, SUPER, MADV_NOHUGEPAGE);
  madvise(sparse, (size_t)1 << 40, MADV_NOHUGEPAGE);
  memset(base, 1, 8 * SUPER);
  memset(super, 1, 2 * SUPER);
  memset(shared, 1, SUPER);
  int sum = 0;
  for (size_t at = 0; at < SUPER; at += PAGE)
    sum += ((volatile char *)zero)[at];
  for (size_t at = 0; at < (size_t)1 << 40; at += (size_t)1 << 34)
    sparse[at] = 1;
  printf("base %p %zu\n", (void *)base, 8 * SUPER);
  printf("super %p %zu\n", (void *)super, 2 * SUPER);
  printf("zero %p %zu\n", (void *)zero, SUPER);
  printf("shared %p %zu\n", (void *)shared, SUPER);
  printf("sparse %p %zu\n", (void *)sparse, (size_t)1 << 40);
  puts("ready");
  fflush(stdout);
  return sum == 0 && getchar() == EOF ? 0 : 1;
}
