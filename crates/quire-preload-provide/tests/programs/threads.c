/* Many threads on one heap and on one mapping. First eight threads allocate,
 * grow, hand over and free blocks of all sizes; then all of them touch the
 * same extents of a mapping at once, half from either end. Every block and
 * every page is checked.  Arguments: MiB mapped, operations per thread. */
#include "common.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

#define THREADS 8
#define SLOTS 192
#define SHARED 256

/* The head of a handed-over block says what it holds. */
struct block {
  size_t size;
  uint64_t tag;
};

static size_t map_size;
static uint64_t operations;
static _Atomic(struct block *) shared[SHARED];
static pthread_barrier_t barrier;
static char *region;
static uint64_t sums[THREADS];

static size_t random_size(uint64_t *state) {
  switch (below(state, 64)) {
  case 0:
    return 1 + below(state, MIB(3));
  case 1:
  case 2:
    return 1 + below(state, 256 << 10);
  case 3 ... 15:
    return 1 + below(state, 16 << 10);
  default:
    return 1 + below(state, 1024);
  }
}

static void check_bytes(const unsigned char *bytes, size_t length, unsigned char value) {
  if (length == 0)
    return;
  if (bytes[0] != value || memcmp(bytes, bytes + 1, length - 1) != 0)
    FAIL("block %p of %zu bytes: wanted %#x everywhere", (const void *)bytes, length, value);
}

/* Puts a block where another thread finds it, and frees what it replaces. */
static void hand_over(uint64_t *state) {
  struct block *mine = NULL;
  if (below(state, 8) != 0) {
    size_t size = random_size(state);
    mine = malloc(sizeof *mine + size);
    CHECK(mine != NULL);
    mine->size = size;
    mine->tag = next_random(state);
    memset(mine + 1, (int)(mine->tag & 0xff), size);
  }
  struct block *other = atomic_exchange(&shared[below(state, SHARED)], mine);
  if (other != NULL) {
    check_bytes((unsigned char *)(other + 1), other->size, other->tag & 0xff);
    free(other);
  }
}

static void heap_phase(unsigned id) {
  uint64_t state = mix(id + 1);
  unsigned char *blocks[SLOTS] = {0};
  size_t sizes[SLOTS] = {0};
  uint64_t sum = 0;
  for (uint64_t i = 0; i < operations; i++) {
    unsigned slot = below(&state, SLOTS);
    unsigned char value = 1 + slot % 255;
    if (blocks[slot] != NULL)
      check_bytes(blocks[slot], sizes[slot], value);
    switch (below(&state, 6)) {
    case 0:
      free(blocks[slot]);
      blocks[slot] = NULL;
      break;
    case 1:
    case 2: {
      size_t size = random_size(&state);
      size_t kept = blocks[slot] == NULL ? 0 : sizes[slot];
      blocks[slot] = realloc(blocks[slot], size);
      CHECK(blocks[slot] != NULL);
      check_bytes(blocks[slot], kept < size ? kept : size, value);
      sizes[slot] = size;
      break;
    }
    case 3: {
      free(blocks[slot]);
      sizes[slot] = random_size(&state);
      blocks[slot] = calloc(1, sizes[slot]);
      CHECK(blocks[slot] != NULL);
      check_bytes(blocks[slot], sizes[slot], 0);
      break;
    }
    case 4: {
      free(blocks[slot]);
      sizes[slot] = random_size(&state);
      size_t align = (size_t)16 << below(&state, 10);
      void *block = NULL;
      CHECK(posix_memalign(&block, align, sizes[slot]) == 0);
      CHECK((uintptr_t)block % align == 0);
      CHECK(malloc_usable_size(block) >= sizes[slot]);
      blocks[slot] = block;
      break;
    }
    default:
      hand_over(&state);
      continue;
    }
    if (blocks[slot] != NULL) {
      memset(blocks[slot], value, sizes[slot]);
      sum += sizes[slot];
    }
  }
  for (unsigned slot = 0; slot < SLOTS; slot++) {
    if (blocks[slot] != NULL)
      check_bytes(blocks[slot], sizes[slot], 1 + slot % 255);
    free(blocks[slot]);
  }
  sums[id] = sum;
}

/* Every thread owns one word of each page and finds it zero at first. */
static void mapping_phase(unsigned id, unsigned order) {
  size_t pages = map_size / PAGE;
  for (size_t i = 0; i < pages; i++) {
    size_t page = i;
    if (id % 2 != order % 2)
      page = pages - 1 - i;
    if (order >= 2) /* odd stride: every page once, extents interleaved */
      page = (page * 513 + id * 64) % pages;
    uint64_t *word = (uint64_t *)(region + page * PAGE) + id * 64;
    if (*word != 0)
      FAIL("thread %u, page %zu: not zero but %#llx", id, page, (unsigned long long)*word);
    *word = mix(page * THREADS + id);
  }
  pthread_barrier_wait(&barrier);
  unsigned other = (id + 1) % THREADS;
  for (size_t page = 0; page < pages; page++) {
    uint64_t *word = (uint64_t *)(region + page * PAGE) + other * 64;
    if (*word != mix(page * THREADS + other))
      FAIL("thread %u's word in page %zu is %#llx", other, page, (unsigned long long)*word);
  }
}

static void *work(void *argument) {
  unsigned id = (unsigned)(uintptr_t)argument;
  heap_phase(id);
  for (unsigned order = 0; order < 4; order++) {
    if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
      region = map_anon(map_size);
    pthread_barrier_wait(&barrier);
    mapping_phase(id, order);
    if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
      CHECK(munmap(region, map_size) == 0);
  }
  return NULL;
}

int main(int argc, char **argv) {
  map_size = MIB(argument(argc, argv, 1, 64));
  operations = argument(argc, argv, 2, 12000);
  pthread_t threads[THREADS];
  CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
  for (unsigned id = 0; id < THREADS; id++)
    CHECK(pthread_create(&threads[id], NULL, work, (void *)(uintptr_t)id) == 0);
  for (unsigned id = 0; id < THREADS; id++)
    CHECK(pthread_join(threads[id], NULL) == 0);
  for (unsigned i = 0; i < SHARED; i++)
    free(shared[i]);
  for (unsigned id = 0; id < THREADS; id++)
    printf("thread %u allocated %llu bytes\n", id, (unsigned long long)sums[id]);
  puts("threads ok");
  return 0;
}
