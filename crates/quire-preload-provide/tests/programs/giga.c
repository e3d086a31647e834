/* Memory of more than 1 GiB, of which parts are unmapped, protected, emptied,
 * mapped over, moved and left out of forks, so that pages of 1 GiB, where there
 * are any, are met in part in every way.  Only some pages are written, so that
 * little memory is needed where pages are small.
 * Arguments: what to do ("all" unless given). */
#include "faults.h"
#include <pthread.h>
#include <stdatomic.h>
#include <ucontext.h>

#define RW (PROT_READ | PROT_WRITE)
#define GIB(n) ((size_t)(n) << 30)
#define SIZE (GIB(1) + MIB(514))
/* A page in every so many, so that each superpage holds some. */
#define STEP (MIB(1) - PAGE)

static void write_all(char *start, size_t length, uint64_t tag) {
  for (size_t at = 0; at < length; at += STEP)
    stamp(start + at, tag + at);
}

/* Looks at what was written from `from` to `to`, and at the page behind each,
 * which was never written. */
static void check_part(const char *start, size_t from, size_t to, uint64_t tag) {
  size_t first = (from + STEP - 1) / STEP * STEP;
  for (size_t at = first; at < to; at += STEP) {
    CHECK_STAMP(start + at, tag + at);
    if (at + PAGE < to)
      CHECK_STAMP(start + at + PAGE, 0);
  }
}

static void check_empty(const char *start, size_t from, size_t to) {
  for (size_t at = from; at < to; at += MIB(1) / 2)
    CHECK_STAMP(start + at, 0);
}

/* Where changes begin and end: inside pages of every size. */
static const size_t cuts[][2] = {
  {PAGE, 2 * PAGE},
  {MIB(3), MIB(3) + PAGE},
  {MIB(510), MIB(518)},
  {MIB(1022) + PAGE, MIB(1026)},
  {MIB(1000), GIB(1) + MIB(300) + PAGE},
};
#define CUTS (sizeof cuts / sizeof *cuts)

static char *fresh(uint64_t tag) {
  char *start = map_anon(SIZE);
  write_all(start, SIZE, tag);
  return start;
}

static void unmap_parts(void) {
  for (size_t i = 0; i < CUTS; i++) {
    char *start = fresh(1);
    size_t from = cuts[i][0], to = cuts[i][1];
    CHECK(munmap(start + from, to - from) == 0);
    CHECK_FAULT(start + from, 0, SEGV_MAPERR);
    CHECK_FAULT(start + to - 1, 0, SEGV_MAPERR);
    check_part(start, 0, from, 1);
    check_part(start, to, SIZE, 1);
    stamp(start + to, 7);
    CHECK(munmap(start, SIZE) == 0);
  }
}

static void protect_parts(void) {
  for (size_t i = 0; i < CUTS; i++) {
    char *start = fresh(2);
    size_t from = cuts[i][0], to = cuts[i][1];
    CHECK(mprotect(start + from, to - from, PROT_READ) == 0);
    check_part(start, 0, SIZE, 2);
    CHECK_FAULT(start + from, 1, SEGV_ACCERR);
    CHECK_FAULT(start + to - 1, 1, SEGV_ACCERR);
    stamp(start + from - PAGE, 7);
    stamp(start + to, 7);
    CHECK(mprotect(start + from, to - from, PROT_NONE) == 0);
    CHECK_FAULT(start + from, 0, SEGV_ACCERR);
    CHECK(mprotect(start + from, to - from, RW) == 0);
    check_part(start, from + PAGE, to, 2);
    CHECK(munmap(start, SIZE) == 0);
  }
}

static void empty_parts(void) {
  for (size_t i = 0; i < CUTS; i++) {
    char *start = fresh(3);
    size_t from = cuts[i][0], to = cuts[i][1];
    CHECK(madvise(start + from, to - from, MADV_DONTNEED) == 0);
    check_empty(start, from, to);
    check_part(start, 0, from, 3);
    check_part(start, to, SIZE, 3);
    /* What may not be written is emptied all the same. */
    CHECK(mprotect(start, SIZE, PROT_READ) == 0);
    CHECK(madvise(start, to, MADV_DONTNEED) == 0);
    check_empty(start, 0, to);
    check_part(start, to, SIZE, 3);
    CHECK(munmap(start, SIZE) == 0);
  }
}

static void map_over_parts(void) {
  for (size_t i = 0; i < CUTS; i++) {
    char *start = fresh(4);
    size_t from = cuts[i][0], to = cuts[i][1];
    CHECK(mmap(start + from, to - from, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start + from);
    check_empty(start, from, to);
    check_part(start, 0, from, 4);
    check_part(start, to, SIZE, 4);
    CHECK(munmap(start, SIZE) == 0);
  }
}

static void move(void) {
  char *start = fresh(5);
  char *grown = mremap(start, SIZE, SIZE + MIB(700), MREMAP_MAYMOVE);
  CHECK(grown != MAP_FAILED);
  check_part(grown, 0, SIZE, 5);
  check_empty(grown, SIZE, SIZE + MIB(700));
  char *shrunk = mremap(grown, SIZE + MIB(700), MIB(700) + PAGE, 0);
  CHECK(shrunk == grown);
  check_part(shrunk, 0, MIB(700) + PAGE, 5);
  char *place = mmap(NULL, GIB(2), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(place != MAP_FAILED);
  char *moved = mremap(shrunk, MIB(700) + PAGE, MIB(700) + PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + PAGE);
  CHECK(moved == place + PAGE);
  check_part(moved, 0, MIB(700) + PAGE, 5);
  CHECK(munmap(place, GIB(2)) == 0);
  start = fresh(6);
  moved = mremap(start + MIB(400), MIB(400), MIB(800), MREMAP_MAYMOVE);
  CHECK(moved != MAP_FAILED && moved != start + MIB(400));
  for (size_t at = MIB(400) / STEP * STEP + STEP; at < MIB(800); at += STEP)
    CHECK_STAMP(moved + at - MIB(400), 6 + at);
  check_part(start, 0, MIB(400), 6);
  check_part(start, MIB(800), SIZE, 6);
  CHECK(munmap(moved, MIB(800)) == 0);
  CHECK(munmap(start, MIB(400)) == 0);
  CHECK(munmap(start + MIB(800), SIZE - MIB(800)) == 0);
}

static void fork_and_write(void) {
  char *start = fresh(7);
  CHECK(madvise(start + MIB(5), MIB(20), MADV_DONTFORK) == 0);
  CHECK(madvise(start + GIB(1) + MIB(5), MIB(20), MADV_WIPEONFORK) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check_part(start, 0, MIB(5), 7);
    CHECK_FAULT(start + MIB(5), 0, SEGV_MAPERR);
    check_part(start, MIB(25), GIB(1) + MIB(5), 7);
    check_empty(start, GIB(1) + MIB(5), GIB(1) + MIB(25));
    check_part(start, GIB(1) + MIB(25), SIZE, 7);
    write_all(start + MIB(25), MIB(700), 8);
    sleep_ms(200);
    check_part(start + MIB(25), 0, MIB(700), 8);
    _exit(0);
  }
  write_all(start, SIZE, 9);
  reap(child, 0);
  check_part(start, 0, SIZE, 9);
  CHECK(munmap(start, SIZE) == 0);
}

#define COUNTERS 64
static char *counted;
static atomic_int stop;

/* Counts on pages all over the memory while another thread changes parts. */
static void *count(void *argument) {
  uint64_t passes = 0;
  while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
    for (size_t i = 0; i < COUNTERS; i++) {
      volatile uint64_t *counter = (volatile uint64_t *)(counted + MIB(4) + i * MIB(15) + PAGE);
      if (*counter != passes)
        FAIL("counter %zu: %llu after %llu passes", i, (unsigned long long)*counter, (unsigned long long)passes);
      *counter = passes + 1;
    }
    passes++;
  }
  return argument;
}

/* No write is lost while the page around it is copied. */
static void write_meanwhile(void) {
  counted = map_anon(SIZE);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, count, NULL) == 0);
  for (size_t i = 0; i < 6; i++) {
    sleep_ms(20);
    char *at = counted + i * MIB(250);
    CHECK(mprotect(at, PAGE, PROT_READ) == 0);
    sleep_ms(20);
    CHECK(mprotect(at, PAGE, RW) == 0);
  }
  atomic_store(&stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(munmap(counted, SIZE) == 0);
}

static char *stack_memory;
static ucontext_t outside, inside;

static void on_own_memory(void) {
  volatile uint64_t local[64];
  for (uint64_t i = 0; i < 64; i++)
    local[i] = i * 77;
  CHECK(mprotect(stack_memory + MIB(900), PAGE, PROT_NONE) == 0);
  CHECK(munmap(stack_memory + MIB(600), MIB(3)) == 0);
  for (uint64_t i = 0; i < 64; i++)
    CHECK(local[i] == i * 77);
  pid_t child = fork();
  CHECK(child >= 0);
  for (uint64_t i = 0; i < 64; i++)
    CHECK(local[i] == i * 77);
  if (child == 0)
    _exit(0);
  reap(child, 0);
}

/* The stack of the thread that changes a part lies in the same page. */
static void stack_inside(void) {
  stack_memory = map_anon(SIZE);
  CHECK(getcontext(&inside) == 0);
  inside.uc_stack.ss_sp = stack_memory + MIB(300);
  inside.uc_stack.ss_size = MIB(1);
  inside.uc_link = &outside;
  makecontext(&inside, on_own_memory, 0);
  CHECK(swapcontext(&outside, &inside) == 0);
  CHECK(munmap(stack_memory, SIZE) == 0);
}

static void heap(void) {
  char *block = malloc(SIZE);
  CHECK(block != NULL);
  write_all(block, SIZE, 11);
  char *grown = realloc(block, SIZE + MIB(300));
  CHECK(grown != NULL);
  check_part(grown, 0, SIZE, 11);
  free(grown);
  char *zeros = calloc(1, SIZE);
  CHECK(zeros != NULL);
  check_empty(zeros, 0, SIZE);
  free(zeros);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } parts[] = {
    {"unmap", unmap_parts},     {"protect", protect_parts}, {"empty", empty_parts},
    {"over", map_over_parts},   {"move", move},             {"fork", fork_and_write},
    {"writes", write_meanwhile}, {"stack", stack_inside},    {"heap", heap},
  };
  catch_faults();
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if (argc > 1 && strcmp(argv[1], "all") != 0 && strcmp(argv[1], parts[i].name) != 0)
      continue;
    parts[i].run();
    printf("%s ok\n", parts[i].name);
    fflush(stdout);
  }
  return 0;
}
