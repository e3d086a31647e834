/* What every test program shares: failing with a message, sizes, a generator
 * of numbers that needs no state of the C library, and page stamps.
 *
 * A stamped page holds a value at eight places, each mixed with the place, so
 * a page that is stale, lost, half copied or of a neighbour is noticed. */
#ifndef QUIRE_TEST_COMMON_H
#define QUIRE_TEST_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define EXTENT ((size_t)2 << 20)
#define MIB(n) ((size_t)(n) << 20)

#define FAIL(...)                                                              \
  do {                                                                         \
    fprintf(stderr, "%s:%d: [%d] ", __FILE__, __LINE__, (int)getpid());        \
    fprintf(stderr, __VA_ARGS__);                                              \
    fputc('\n', stderr);                                                       \
    _exit(1);                                                                  \
  } while (0)

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition))                                                          \
      FAIL("failed: %s (errno %d %s)", #condition, errno, strerror(errno));    \
  } while (0)

/* `call` must fail with -1 (or MAP_FAILED) and this error number. */
#define CHECK_ERRNO(call, number)                                              \
  do {                                                                         \
    errno = 0;                                                                 \
    long result_ = (long)(call);                                               \
    if (result_ != -1 || errno != (number))                                    \
      FAIL("%s: result %ld, errno %d, wanted errno %d", #call, result_, errno, \
           (number));                                                          \
  } while (0)

static inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* The next number of the sequence that `state` is at. */
static inline uint64_t next_random(uint64_t *state) { return mix((*state)++); }

/* A number below `bound`. */
static inline uint64_t below(uint64_t *state, uint64_t bound) {
  return next_random(state) % bound;
}

static inline uint64_t argument(int argc, char **argv, int index, uint64_t otherwise) {
  return index < argc ? strtoull(argv[index], NULL, 0) : otherwise;
}

static inline char *map_anon(size_t length) {
  char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

/* A field of /proc/self/status, in bytes. */
static inline size_t status_bytes(const char *name) {
  FILE *file = fopen("/proc/self/status", "r");
  CHECK(file != NULL);
  char line[256];
  size_t kib = 0;
  while (fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, name, strlen(name)) == 0)
      kib = strtoull(line + strlen(name), NULL, 10);
  CHECK(fclose(file) == 0);
  return kib << 10;
}

#define STAMPS 8

static inline uint64_t stamp_word(uint64_t value, unsigned place) {
  return value == 0 ? 0 : value * 0x9e3779b97f4a7c15u + place;
}

static inline void stamp(void *page, uint64_t value) {
  volatile uint64_t *words = page;
  for (unsigned place = 0; place < STAMPS; place++)
    words[place * 64 + place] = stamp_word(value, place);
}

/* Zero when the page holds `value` (0: the page was never written). */
static inline int stamp_differs(const void *page, uint64_t value) {
  const volatile uint64_t *words = page;
  for (unsigned place = 0; place < STAMPS; place++)
    if (words[place * 64 + place] != stamp_word(value, place))
      return 1;
  return 0;
}

#define CHECK_STAMP(page, value)                                               \
  do {                                                                         \
    const void *page_ = (page);                                                \
    uint64_t value_ = (value);                                                 \
    if (stamp_differs(page_, value_))                                          \
      FAIL("page %p: found word %#llx (%#llx at place 7), wanted stamp %#llx " \
           "(word %#llx)",                                                     \
           page_, (unsigned long long)*(const uint64_t *)page_,                \
           (unsigned long long)((const uint64_t *)page_)[7 * 64 + 7],          \
           (unsigned long long)value_,                                         \
           (unsigned long long)stamp_word(value_, 0));                         \
  } while (0)

/* Stamps, or checks, page i of a range with tag + i. */
static inline void stamp_range(char *start, size_t length, uint64_t tag) {
  for (size_t i = 0; i < length / PAGE; i++)
    stamp(start + i * PAGE, tag + i);
}

static inline void check_range(const char *start, size_t length, uint64_t tag) {
  for (size_t i = 0; i < length / PAGE; i++)
    CHECK_STAMP(start + i * PAGE, tag + i);
}

static inline void check_zero_range(const char *start, size_t length) {
  for (size_t i = 0; i < length / PAGE; i++)
    CHECK_STAMP(start + i * PAGE, 0);
}

/* Waits for a child, which must exit with `wanted`. */
static inline void reap(pid_t child, int wanted) {
  int status = 0;
  pid_t got;
  while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR)
    ;
  if (got != child || !WIFEXITED(status) || WEXITSTATUS(status) != wanted)
    FAIL("child %d: waitpid gave %d, status %#x, wanted exit %d", (int)child, (int)got, status, wanted);
}

static inline double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void sleep_ms(long ms) {
  struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&rest, &rest) < 0 && errno == EINTR)
    ;
}

#endif
