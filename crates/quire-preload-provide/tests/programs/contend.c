/* First writes of every kind: by threads that read and write the same pages at once,
 * also after the pages were given up; to pages that were read before, which takes no
 * memory; and into the middle of a mapping that is larger than memory.  Says where the
 * pages are, and waits until its input ends. */
#include "common.h"
#include <pthread.h>
#include <sched.h>

#define THREADS 4
#define CONTENDED MIB(8)
#define PAGES (CONTENDED / PAGE)
#define ROUNDS 6
#define READ MIB(8)
#define LARGE ((size_t)48 << 30)
#define PART MIB(1)

static char *contended;
static pthread_barrier_t barrier;

static uint64_t *word(size_t page, size_t n) {
  return (uint64_t *)(contended + page * PAGE) + n;
}

/* In even rounds all go in order, in odd ones each goes its own way. */
static size_t place(size_t i, size_t round, size_t thread) {
  static const size_t step[THREADS] = {7919, 389, 1021, 2039};
  return round % 2 == 0 ? i : (i * step[thread] + 13 * thread) % PAGES;
}

static void *work(void *argument) {
  size_t thread = (size_t)argument;
  for (size_t round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < PAGES; i++) {
      size_t page = place(i, round, thread);
      if (thread % 2 == 1)
        CHECK(__atomic_load_n(word((page + 1) % PAGES, 8), __ATOMIC_RELAXED) <= THREADS);
      __atomic_fetch_add(word(page, thread % 3), 1, __ATOMIC_RELAXED);
      __atomic_fetch_add(word(page, 8), 1, __ATOMIC_RELAXED);
    }
    pthread_barrier_wait(&barrier);
    if (thread == 0) {
      for (size_t page = 0; page < PAGES; page++)
        CHECK(*word(page, 8) == THREADS && *word(page, 0) + *word(page, 1) + *word(page, 2) == THREADS);
      if (round + 1 < ROUNDS)
        CHECK(madvise(contended, CONTENDED, MADV_DONTNEED) == 0);
    }
  }
  return NULL;
}

static void contend(void) {
  contended = map_anon(CONTENDED);
  CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
  pthread_t thread[THREADS];
  for (size_t i = 0; i < THREADS; i++)
    CHECK(pthread_create(&thread[i], NULL, work, (void *)i) == 0);
  for (size_t i = 0; i < THREADS; i++)
    CHECK(pthread_join(thread[i], NULL) == 0);
}

static void say(const char *name, const char *memory, size_t size) {
  printf("%s %lx %lx\n", name, (unsigned long)memory, (unsigned long)(memory + size));
}

int main(void) {
  contend();
  char *read_first = map_anon(READ);
  size_t before = status_bytes("VmRSS");
  for (size_t at = 0; at < READ; at += PAGE)
    CHECK(((volatile char *)read_first)[at] == 0);
  size_t taken = status_bytes("VmRSS") - before;
  stamp_range(read_first, READ, 3);
  check_range(read_first, READ, 3);
  char *large = mmap(NULL, LARGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(large != MAP_FAILED);
  char *part = large + LARGE / 2;
  stamp_range(part, PART, 5);
  say("contended", contended, CONTENDED);
  say("read", read_first, READ);
  say("part", part, PART);
  printf("taken %zu %zu\n", taken, READ);
  puts("ready");
  fflush(stdout);
  char byte;
  CHECK(read(0, &byte, 1) == 0);
  check_range(part, PART, 5);
  return 0;
}
