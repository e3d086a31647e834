/* Random memory operations against a model of what every page must hold.
 * The model lies in a private mapping of a file, which is not managed and of
 * which a forked child has its own copy.  Each thread owns its regions.
 * Arguments: seed, threads, operations per thread, 1 to tell each operation. */
#include "faults.h"
#include <pthread.h>

#ifdef GIGA /* regions of more than 1 GiB, of which few pages are written */
#define REGIONS 2
#define REGION_PAGES 300000
#define LEAST_PAGES 262144
#define WRITTEN 1024
#else
#define REGIONS 8
#define REGION_PAGES 6144
#define LEAST_PAGES 512
#define WRITTEN REGION_PAGES
#endif
#define BLOCKS 48
#define MAX_THREADS 8
#define RW (PROT_READ | PROT_WRITE)

enum state { GONE, NONE, READ, WRITE };
enum at_fork { LEFT_OUT = 1, WIPED = 2 };

struct region {
  char *start;
  size_t pages;
  uint8_t state[REGION_PAGES];
  uint8_t at_fork[REGION_PAGES];
  uint64_t value[REGION_PAGES];
};

struct block {
  unsigned char *start;
  size_t size;
  unsigned char value;
};

struct model {
  uint64_t random, next_value, operation;
  struct region regions[REGIONS];
  struct block blocks[BLOCKS];
};

static struct model *models;
static uint64_t seed, operations;
static unsigned thread_count;
static int tell;

#define ASSERT(condition)                                                      \
  do {                                                                         \
    if (!(condition))                                                          \
      FAIL("seed %llu, %u threads, thread %zu, operation %llu: %s (errno %d)", \
           (unsigned long long)seed, thread_count, (size_t)(m - models),       \
           (unsigned long long)m->operation, #condition, errno);               \
  } while (0)

static void check_page(struct model *m, struct region *r, size_t i) {
  char *page = r->start + i * PAGE;
  if (r->state[i] >= READ && stamp_differs(page, r->value[i]))
    FAIL("seed %llu, %u threads, thread %zu, operation %llu: region %p+%zu, page %zu holds %#llx, "
         "wanted %#llx (value %llu)",
         (unsigned long long)seed, thread_count, (size_t)(m - models), (unsigned long long)m->operation,
         (void *)r->start, r->pages, i, (unsigned long long)*(uint64_t *)page,
         (unsigned long long)stamp_word(r->value[i], 0), (unsigned long long)r->value[i]);
}

static void write_page(struct model *m, struct region *r, size_t i) {
  if (r->state[i] != WRITE)
    return;
  r->value[i] = m->next_value++;
  stamp(r->start + i * PAGE, r->value[i]);
}

static void check_block(struct model *m, struct block *b) {
  for (size_t i = 0; i < b->size; i += i + 64 < b->size ? 61 : 1)
    ASSERT(b->start[i] == b->value);
}

static void check_all(struct model *m) {
  for (unsigned k = 0; k < REGIONS; k++)
    for (size_t i = 0; i < m->regions[k].pages; i++)
      check_page(m, &m->regions[k], i);
  for (unsigned k = 0; k < BLOCKS; k++)
    check_block(m, &m->blocks[k]);
}

static size_t random_pages(struct model *m, size_t most) {
  size_t bound = below(&m->random, 3) == 0 ? 16 : below(&m->random, 2) == 0 ? 1024 : most;
  size_t pages = 1 + below(&m->random, bound);
  return pages < most ? pages : most;
}

static void make_region(struct model *m, struct region *r) {
  size_t pages = below(&m->random, 4) == 0 ? random_pages(m, REGION_PAGES)
                                           : LEAST_PAGES + below(&m->random, REGION_PAGES - LEAST_PAGES);
  if (below(&m->random, 3) == 0)
    pages = pages / 512 * 512 + 512 <= REGION_PAGES ? pages / 512 * 512 + 512 : 512;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (below(&m->random, 8) == 0 && pages <= WRITTEN)
    flags |= MAP_POPULATE;
  if (below(&m->random, 4) == 0)
    flags |= MAP_NORESERVE;
  int none = below(&m->random, 8) == 0;
  r->start = mmap(NULL, pages * PAGE, none ? PROT_NONE : RW, flags, -1, 0);
  ASSERT(r->start != MAP_FAILED);
  r->pages = pages;
  for (size_t i = 0; i < pages; i++) {
    r->state[i] = none ? NONE : WRITE;
    r->at_fork[i] = 0;
    r->value[i] = 0;
  }
}

/* Drops a whole region, with whatever holes it has. A hole may by now be
 * somebody else's memory, so the pieces go one by one. */
static void drop_region(struct model *m, struct region *r) {
  for (size_t i = 0, end; i < r->pages; i = end) {
    end = i + 1;
    if (r->state[i] == GONE)
      continue;
    while (end < r->pages && r->state[end] != GONE)
      end++;
    ASSERT(munmap(r->start + i * PAGE, (end - i) * PAGE) == 0);
  }
  r->pages = 0;
}

static int has_hole(struct region *r, size_t from, size_t to) {
  for (size_t i = from; i < to; i++)
    if (r->state[i] == GONE)
      return 1;
  return 0;
}

/* Moves a region and keeps the old addresses, which read as zeros then. */
static void remap_and_keep(struct model *m, struct region *r) {
  char *old = r->start;
  char *moved = mremap(old, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
  if (moved == MAP_FAILED) {
    ASSERT(errno == EFAULT || errno == EINVAL);
    return;
  }
  if (r->state[0] >= READ)
    check_zero_range(old, r->pages * PAGE);
  ASSERT(munmap(old, r->pages * PAGE) == 0);
  r->start = moved;
}

/* Moves, grows or shrinks a region that is in one piece. */
static void remap_region(struct model *m, struct region *r) {
  for (size_t i = 0; i < r->pages; i++)
    if (r->state[i] != r->state[0])
      return;
  if (r->state[0] == GONE)
    return;
  if (below(&m->random, 6) == 0) {
    remap_and_keep(m, r);
    return;
  }
  size_t pages = below(&m->random, 3) == 0 ? r->pages : random_pages(m, REGION_PAGES);
  int flags = below(&m->random, 4) == 0 ? 0 : MREMAP_MAYMOVE;
  char *to = NULL;
  if (flags && below(&m->random, 3) == 0) { /* to a place of its own */
    to = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT(to != MAP_FAILED);
    flags |= MREMAP_FIXED;
  }
  char *moved = mremap(r->start, r->pages * PAGE, pages * PAGE, flags, to);
  if (moved == MAP_FAILED) {
    /* The kernel may hold the region as several mappings and then refuses. */
    ASSERT(errno == EFAULT || (errno == ENOMEM && !(flags & MREMAP_MAYMOVE)));
    return; /* `to` is left: it may be unmapped, and another's by now */
  }
  ASSERT(to == NULL || moved == to);
  r->start = moved;
  for (size_t i = r->pages; i < pages; i++) {
    r->state[i] = r->state[0];
    r->at_fork[i] = r->at_fork[r->pages - 1];
    r->value[i] = 0;
  }
  r->pages = pages;
}

static void advise(struct model *m, struct region *r, size_t from, size_t to) {
  static const int hints[] = {MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_RANDOM};
  char *start = r->start + from * PAGE;
  unsigned kind = below(&m->random, 8);
  if (kind != 2 && kind < 5 && to - from > WRITTEN)
    to = from + WRITTEN; /* what follows touches them all */
  size_t length = (to - from) * PAGE;
  switch (kind) {
  case 0: /* hints change nothing that a program can see */
    (void)madvise(start, length, hints[below(&m->random, 6)]);
    break;
  case 1:
    for (size_t i = from; i < to; i++)
      if (r->state[i] != WRITE)
        return;
    ASSERT(madvise(start, length, MADV_FREE) == 0);
    for (size_t i = from; i < to; i++)
      write_page(m, r, i); /* until written, either content is right */
    break;
  case 2: { /* what a child gets */
    static const int advice[] = {MADV_DOFORK, MADV_DONTFORK, MADV_KEEPONFORK, MADV_WIPEONFORK};
    unsigned which = below(&m->random, 4), bit = which < 2 ? LEFT_OUT : WIPED;
    ASSERT(madvise(start, length, advice[which]) == 0);
    for (size_t i = from; i < to; i++)
      r->at_fork[i] = which % 2 ? r->at_fork[i] | bit : r->at_fork[i] & ~bit;
    break;
  }
  case 3: /* not a change either; it may exceed a limit, or meet no access */
    (void)madvise(start, length, below(&m->random, 2) ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
    break;
  case 4:
    (void)mlock(start, length);
    ASSERT(munlock(start, length) == 0 || errno == ENOMEM);
    break;
  default:
    ASSERT(madvise(start, length, MADV_DONTNEED) == 0);
    for (size_t i = from; i < to; i++)
      r->value[i] = 0;
  }
}

/* Copies pages through a pipe, so that the kernel reads and writes them. */
static void copy_by_kernel(struct model *m, struct region *r, size_t from, size_t to) {
  int ends[2];
  ASSERT(pipe(ends) == 0);
  for (size_t i = from; i + 1 < to && i < from + 8; i++) {
    if (r->state[i] < READ || r->state[i + 1] != WRITE)
      continue;
    ASSERT(write(ends[1], r->start + i * PAGE, PAGE) == (ssize_t)PAGE);
    ASSERT(read(ends[0], r->start + (i + 1) * PAGE, PAGE) == (ssize_t)PAGE);
    r->value[i + 1] = r->value[i];
  }
  ASSERT(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void heap(struct model *m, struct block *b) {
  check_block(m, b);
  size_t size = 1 + below(&m->random, below(&m->random, 6) == 0 ? MIB(3) : 50000);
  switch (below(&m->random, 3)) {
  case 0:
    free(b->start);
    b->start = calloc(1, size);
    ASSERT(b->start != NULL);
    b->value = 0;
    b->size = size;
    check_block(m, b);
    break;
  case 1:
    b->start = realloc(b->start, size);
    ASSERT(b->start != NULL);
    b->size = b->size < size ? b->size : size;
    check_block(m, b);
    break;
  default:
    free(b->start);
    b->start = malloc(size);
    ASSERT(b->start != NULL);
  }
  b->size = size;
  b->value = (unsigned char)below(&m->random, 256);
  memset(b->start, b->value, size);
}

static void operate(struct model *m, pid_t *child);

/* Makes the model of a region that of a forked child. */
static void inherit(struct region *r) {
  for (size_t i = 0; i < r->pages; i++)
    if (r->at_fork[i] & LEFT_OUT)
      r->state[i] = GONE;
    else if (r->at_fork[i] & WIPED)
      r->value[i] = 0;
}

/* The child has model and memory of its own and goes on with both. */
static void fork_here(struct model *m, pid_t *child) {
  if (*child > 0)
    reap(*child, 0);
  *child = fork();
  ASSERT(*child >= 0);
  if (*child == 0) {
    pid_t none = -1;
    for (unsigned k = 0; k < REGIONS; k++)
      inherit(&m->regions[k]);
    check_all(m);
    m->random = mix(m->random); /* another way than the parent's */
    for (unsigned i = 0; i < 12; i++)
      operate(m, &none);
    check_all(m);
    _exit(0);
  }
  if (below(&m->random, 2) == 0) {
    reap(*child, 0);
    *child = -1;
  }
}

static void operate(struct model *m, pid_t *child) {
  struct region *r = &m->regions[below(&m->random, REGIONS)];
  if (r->pages == 0)
    make_region(m, r);
  size_t count = random_pages(m, r->pages), from = below(&m->random, r->pages - count + 1);
  size_t to = from + count;
  char *start = r->start + from * PAGE;
  unsigned kind = below(&m->random, 48);
  m->operation++;
  if (tell)
    fprintf(stderr, "%zu.%llu: %u on %p+%zu pages %zu..%zu\n", (size_t)(m - models),
            (unsigned long long)m->operation, kind, (void *)r->start, r->pages, from, to);
  switch (kind) {
  case 0:
    drop_region(m, r);
    break;
  case 1:
    fork_here(m, child);
    break;
  case 2:
    check_all(m);
    break;
  case 3 ... 6:
    heap(m, &m->blocks[below(&m->random, BLOCKS)]);
    break;
  case 7 ... 9:
    remap_region(m, r);
    break;
  case 10:
    copy_by_kernel(m, r, from, to);
    break;
  case 11 ... 26: {
    /* Densely, so that superpages fill, or sparsely, or backwards. */
    size_t step = below(&m->random, 2) == 0 ? 1 : 1 + below(&m->random, 200);
    if ((to - from) / step > WRITTEN)
      step = (to - from) / WRITTEN + 1;
    for (size_t i = from; i < to; i += step)
      write_page(m, r, i);
    break;
  }
  case 27 ... 34:
    for (size_t i = from; i < to; i++)
      check_page(m, r, i);
    break;
  default:
    if (has_hole(r, from, to))
      return;
    switch (kind % 5) {
    case 0:
      ASSERT(munmap(start, count * PAGE) == 0);
      memset(r->state + from, GONE, count);
      break;
    case 1:
      ASSERT(mmap(start, count * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start);
      for (size_t i = from; i < to; i++) {
        r->state[i] = WRITE;
        r->at_fork[i] = 0;
        r->value[i] = 0;
      }
      break;
    case 2:
    case 3: {
      static const int protections[] = {[NONE] = PROT_NONE, [READ] = PROT_READ, [WRITE] = RW};
      enum state state = below(&m->random, 2) == 0 ? WRITE : NONE + below(&m->random, 3);
      ASSERT(mprotect(start, count * PAGE, protections[state]) == 0);
      memset(r->state + from, (int)state, count);
      if (thread_count == 1 && state != WRITE) /* handlers are the process's */
        CHECK_FAULT(start + below(&m->random, count) * PAGE, 1, SEGV_ACCERR);
      break;
    }
    default:
      advise(m, r, from, to);
    }
  }
}

static void *run(void *argument) {
  struct model *m = argument;
  pid_t child = -1;
  for (uint64_t i = 0; i < operations; i++)
    operate(m, &child);
  check_all(m);
  if (child > 0)
    reap(child, 0);
  for (unsigned k = 0; k < REGIONS; k++)
    drop_region(m, &m->regions[k]);
  for (unsigned k = 0; k < BLOCKS; k++)
    free(m->blocks[k].start);
  return NULL;
}

int main(int argc, char **argv) {
  seed = argument(argc, argv, 1, 1);
  thread_count = (unsigned)argument(argc, argv, 2, 1);
  operations = argument(argc, argv, 3, 3000);
  tell = (int)argument(argc, argv, 4, 0);
  CHECK(thread_count >= 1 && thread_count <= MAX_THREADS);
  if (thread_count == 1)
    catch_faults();
  size_t length = sizeof *models * MAX_THREADS;
  FILE *file = tmpfile();
  CHECK(file != NULL && ftruncate(fileno(file), (off_t)length) == 0);
  models = mmap(NULL, length, RW, MAP_PRIVATE, fileno(file), 0);
  CHECK(models != MAP_FAILED);
  pthread_t threads[MAX_THREADS];
  for (unsigned i = 0; i < thread_count; i++) {
    models[i].random = mix(seed * 1000 + i);
    models[i].next_value = 1 + ((uint64_t)i << 40);
  }
  if (thread_count == 1)
    run(&models[0]);
  else {
    for (unsigned i = 0; i < thread_count; i++)
      CHECK(pthread_create(&threads[i], NULL, run, &models[i]) == 0);
    for (unsigned i = 0; i < thread_count; i++)
      CHECK(pthread_join(threads[i], NULL) == 0);
  }
  printf("seed %llu, %u threads, %llu operations ok\n", (unsigned long long)seed, thread_count,
         (unsigned long long)operations);
  return 0;
}
