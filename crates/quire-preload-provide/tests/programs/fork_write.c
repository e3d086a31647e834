/* Isolation of parent and child after a fork, in both directions, while both
 * live and change their memory: pages are rewritten, regions are made, moved,
 * dropped and emptied on one side while the other side checks.  At the end two
 * threads count on their own pages with plain writes while children come and
 * go, so that a write that is lost when memory is taken back is noticed.
 * Arguments: MiB, rounds, milliseconds of counting. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

#define COUNTERS 3000
#define THREADS 2

static size_t size;

/* Writes the byte that the other side waits for, or waits for it. */
static void tell(int fd) { CHECK(write(fd, "x", 1) == 1); }
static void hear(int fd) {
  char byte;
  CHECK(read(fd, &byte, 1) == 1);
}

struct pieces {
  char *main, *dropped, *moved, *emptied, *heap;
};

#define PIECE MIB(12)
#define A(round) ((uint64_t)(round) * 1000003 + 17)
#define B(round) ((uint64_t)(round) * 2000003 + 1000000019)
#define C(round) ((uint64_t)(round) * 3000017 + 4000000007)

static void child_side(struct pieces p, unsigned round, int from_parent, int to_parent) {
  hear(from_parent); /* the parent has written and dropped by now */
  check_range(p.main, size, A(round));
  check_range(p.dropped, PIECE, A(round) + 1);
  check_range(p.moved, PIECE, A(round) + 2);
  check_range(p.emptied, PIECE, A(round) + 3);
  check_range(p.heap, PIECE, A(round) + 4);
  /* The child grows, moves, empties and drops its own. */
  char *fresh = map_anon(PIECE);
  check_zero_range(fresh, PIECE);
  stamp_range(fresh, PIECE, C(round));
  char *moved = mremap(p.dropped, PIECE, PIECE * 2, MREMAP_MAYMOVE);
  CHECK(moved != MAP_FAILED);
  check_range(moved, PIECE, A(round) + 1);
  check_zero_range(moved + PIECE, PIECE);
  CHECK(munmap(p.moved, PIECE) == 0);
  CHECK(madvise(p.main + size / 2, size / 4, MADV_DONTNEED) == 0);
  check_zero_range(p.main + size / 2, size / 4);
  check_range(p.main, size / 2, A(round));
  stamp_range(p.main, size, C(round));
  stamp_range(p.heap, PIECE, C(round));
  tell(to_parent);
  hear(from_parent); /* the parent has checked its own by now */
  check_range(p.main, size, C(round));
  check_range(p.heap, PIECE, C(round));
  check_range(fresh, PIECE, C(round));
  check_range(moved, PIECE, A(round) + 1);
  check_range(p.emptied, PIECE, A(round) + 3);
  _exit(0);
}

static void check_parent(struct pieces p, unsigned round) {
  for (size_t i = 0; i < size / PAGE; i++)
    CHECK_STAMP(p.main + i * PAGE, (i % 3 == 0 ? B(round) : A(round)) + i);
  check_range(p.moved, PIECE, A(round) + 2);
  check_zero_range(p.emptied, PIECE / 2);
  check_range(p.emptied + PIECE / 2, PIECE / 2, A(round) + 3 + PIECE / 2 / PAGE);
  check_range(p.heap, PIECE, A(round) + 4);
}

static void isolation_round(char *region, unsigned round) {
  struct pieces p = {region, map_anon(PIECE), map_anon(PIECE), map_anon(PIECE), NULL};
  CHECK(posix_memalign((void **)&p.heap, PAGE, PIECE) == 0);
  stamp_range(p.main, size, A(round));
  stamp_range(p.dropped, PIECE, A(round) + 1);
  stamp_range(p.moved, PIECE, A(round) + 2);
  stamp_range(p.emptied, PIECE, A(round) + 3);
  stamp_range(p.heap, PIECE, A(round) + 4);
  int down[2], up[2];
  CHECK(pipe(down) == 0 && pipe(up) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(close(down[1]) == 0 && close(up[0]) == 0);
    child_side(p, round, down[0], up[1]);
  }
  /* So that neither side waits for one that has failed. */
  CHECK(close(down[0]) == 0 && close(up[1]) == 0);

  for (size_t i = 0; i < size / PAGE; i += 3)
    stamp(p.main + i * PAGE, B(round) + i);
  CHECK(munmap(p.dropped, PIECE) == 0);
  char *moved = mremap(p.moved, PIECE, PIECE + MIB(4), MREMAP_MAYMOVE);
  CHECK(moved != MAP_FAILED);
  p.moved = moved;
  CHECK(madvise(p.emptied, PIECE / 2, MADV_DONTNEED) == 0);
  char *grown = map_anon(PIECE);
  stamp_range(grown, PIECE, B(round));
  char *heap = malloc(PIECE);
  CHECK(heap != NULL);
  memset(heap, 0x5b, PIECE);
  tell(down[1]);
  hear(up[0]); /* the child has changed its copy by now */
  check_parent(p, round);
  tell(down[1]);
  reap(child, 0);
  check_parent(p, round);
  check_range(grown, PIECE, B(round));
  CHECK(heap[0] == 0x5b && heap[PIECE - 1] == 0x5b);

  CHECK(close(down[1]) == 0 && close(up[0]) == 0);
  free(heap);
  free(p.heap);
  CHECK(munmap(grown, PIECE) == 0);
  CHECK(munmap(p.moved, PIECE + MIB(4)) == 0);
  CHECK(munmap(p.emptied, PIECE) == 0);
}

static atomic_int stop;
static char *counted;
static uint64_t raised[THREADS];

/* One plain counter per page; all must hold the number of passes. */
static void *count(void *argument) {
  size_t id = (size_t)(uintptr_t)argument;
  uint64_t passes = 0;
  while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
    for (size_t i = 0; i < COUNTERS; i++) {
      volatile uint64_t *counter = (volatile uint64_t *)(counted + (i * THREADS + id) * PAGE);
      if (*counter != passes)
        FAIL("thread %zu, counter %zu: %llu after %llu passes", id, i,
             (unsigned long long)*counter, (unsigned long long)passes);
      *counter = passes + 1;
    }
    passes++;
  }
  raised[id] = passes;
  return NULL;
}

static void counting(char *region, uint64_t ms) {
  size_t length = COUNTERS * THREADS * PAGE;
  counted = map_anon(length);
  pthread_t threads[THREADS];
  for (size_t i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, count, (void *)i) == 0);
  double end = seconds() + (double)ms / 1000;
  uint64_t tag = 1;
  for (unsigned turn = 0; seconds() < end; turn++, tag += 7919) {
    /* A child now and then; between them memory is being taken back. */
    pid_t child = -1;
    if (turn % 4 == 0) {
      CHECK((child = fork()) >= 0);
      if (child == 0) {
        sleep_ms(20);
        for (size_t i = 0; i < COUNTERS * THREADS; i++)
          *(volatile uint64_t *)(counted + i * PAGE) = UINT64_MAX;
        _exit(0);
      }
    }
    stamp_range(region, size, tag);
    if (child > 0)
      reap(child, 0);
    check_range(region, size, tag);
  }
  atomic_store(&stop, 1);
  for (size_t i = 0; i < THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  for (size_t id = 0; id < THREADS; id++)
    for (size_t i = 0; i < COUNTERS; i++)
      CHECK(*(uint64_t *)(counted + (i * THREADS + id) * PAGE) == raised[id]);
  CHECK(munmap(counted, length) == 0);
}

int main(int argc, char **argv) {
  size = MIB(argument(argc, argv, 1, 128));
  uint64_t rounds = argument(argc, argv, 2, 5);
  uint64_t ms = argument(argc, argv, 3, 1500);
  char *region = map_anon(size);
  for (unsigned round = 1; round <= rounds; round++) {
    isolation_round(region, round);
    printf("round %u ok\n", round);
    fflush(stdout);
  }
  counting(region, ms);
  puts("counting ok");
  return 0;
}
