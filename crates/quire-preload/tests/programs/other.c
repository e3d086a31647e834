/* An allocator that is not the C library's: blocks of all sizes, by several threads, given up by others; children.
 * The test links or preloads the allocator. */
#include "promise.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

enum { BLOCKS = 400, ROUNDS = 2000 };

static struct {
  _Atomic(unsigned char *) block;
} shared[BLOCKS];

static void *churn(void *seed) {
  uint64_t state = (uintptr_t)seed;
  for (int round = 0; round < ROUNDS; round++) {
    size_t size = 16 + (below(&state, 50) == 0 ? below(&state, MIB(6)) : below(&state, 40000));
    unsigned char *block = NULL;
    switch (below(&state, 5)) {
    case 0:
      block = calloc(1, size);
      CHECK(block != NULL && block[size / 2] == 0 && block[size - 1] == 0);
      break;
    case 1:
      CHECK(posix_memalign((void **)&block, 4096, size) == 0 && (uintptr_t)block % 4096 == 0);
      break;
    case 2:
      block = aligned_alloc(64, (size + 63) / 64 * 64);
      CHECK(block != NULL && (uintptr_t)block % 64 == 0);
      break;
    default:
      block = malloc(size);
      CHECK(block != NULL);
    }
    memcpy(block, &size, sizeof size);
    block[size - 1] = (unsigned char)size;
    unsigned char *old = atomic_exchange(&shared[below(&state, BLOCKS)].block, block);
    if (old == NULL)
      continue;
    size_t len;
    memcpy(&len, old, sizeof len);
    CHECK(old[len - 1] == (unsigned char)len);
    if (below(&state, 3) == 0) {
      old = realloc(old, len + size);
      CHECK(old != NULL && old[len - 1] == (unsigned char)len);
    }
    free(old);
  }
  return NULL;
}

int main(void) {
  /* Large blocks that grow. */
  size_t len = MIB(48);
  char *large = malloc(len);
  CHECK(large != NULL);
  stamp_range((char *)(((uintptr_t)large + PAGE - 1) / PAGE * PAGE), len - PAGE, 5);
  char *grown = grow_up();
  sleep_ms(100);
  for (; len < MIB(128); len += MIB(16)) {
    memset(large, (int)(len >> 20), len);
    large = realloc(large, len + MIB(16));
    CHECK(large != NULL && large[0] == (char)(len >> 20) && large[len - 1] == (char)(len >> 20));
  }
  free(large);
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; i++)
    CHECK(pthread_create(threads + i, NULL, churn, (void *)(i + 1)) == 0);
  for (int i = 0; i < 4; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  churn((void *)9);
  if (child == 0)
    _exit(0);
  reap(child, 0);
  check_range(grown, MIB(96), 1);
  puts("other ok");
  return 0;
}
