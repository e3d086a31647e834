/* A library whose constructor maps memory: the loader's lock is held meanwhile. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static char *mapped, *allocated;

__attribute__((constructor)) static void begin(void) {
  mapped = mmap(NULL, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped != MAP_FAILED)
    memset(mapped, 1, 32 << 20);
  allocated = malloc(24 << 20);
  if (allocated != NULL)
    memset(allocated, 2, 24 << 20);
}

int is_right(void) {
  return mapped != MAP_FAILED && allocated != NULL && mapped[31 << 20] == 1 && allocated[23 << 20] == 2;
}
