/* Blocks whose mapping the library's advice has cut into several are moved as before: by mremap, by realloc, in a
 * forked child, too; and a large block that grows is not copied.  Argument: mremap, syscall or realloc. */
#include "promise.h"
#include <sys/resource.h>
#include <sys/syscall.h>

static const size_t LEN = MIB(160);

static long faults(void) {
  struct rusage usage;
  CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return usage.ru_minflt;
}

/* Until advice has cut it, where there is any. */
static size_t cut(const char *memory, size_t len) {
  double until = seconds() + 1;
  while (policy_is("adaptive") && memory_of(memory, len).mappings < 2 && seconds() < until)
    sleep_ms(5);
  return memory_of(memory, len).mappings;
}

/* In order, with pauses, so that the next part is advised while this one is filled. */
static void fill(char *memory, size_t len) {
  for (size_t at = 0; at < len; at += EXTENT) {
    stamp_range(memory + at, EXTENT, 7 + at / PAGE);
    if (at % MIB(8) == 0)
      sleep_ms(2);
  }
}

static char *remap(int raw, char *old, size_t len, size_t new, int flags, char *to) {
  char *moved = raw ? (char *)syscall(SYS_mremap, old, len, new, flags, to) : mremap(old, len, new, flags, to);
  if (moved == MAP_FAILED)
    FAIL("mremap of %zu mappings to %zu MiB, flags %d: %s", memory_of(old, len).mappings, new >> 20, flags,
         strerror(errno));
  return moved;
}

static void by_mremap(int raw) {
  char *memory = map_anon(LEN + MIB(64));
  fill(memory, LEN);
  NOTE("%zu mappings", cut(memory, LEN + MIB(64)));
  size_t len = LEN + MIB(64);
  memory = remap(raw, memory, len, len + MIB(64), MREMAP_MAYMOVE, NULL);
  len += MIB(64);
  check_range(memory, LEN, 7);
  check_zero_range(memory + LEN, MIB(16));
  char *place = mmap(NULL, len + EXTENT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(place != MAP_FAILED);
  memory = remap(raw, memory, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, place + PAGE * 3);
  check_range(memory, LEN, 7);
  pid_t child = fork();
  CHECK(child >= 0);
  memory = remap(raw, memory, len, len + MIB(32), MREMAP_MAYMOVE, NULL);
  check_range(memory, LEN, 7);
  if (child == 0)
    _exit(0);
  reap(child, 0);
  memory = remap(raw, memory, len + MIB(32), LEN, 0, NULL);
  check_range(memory, LEN, 7);
  CHECK(munmap(memory, LEN) == 0);
}

/* Grows a block step by step; says how many of its pages were touched for that, more than are its own. */
static long by_realloc(char **block, size_t *len, size_t to) {
  long extra = 0;
  while (*len < to) {
    size_t more = *len + MIB(32);
    long before = faults();
    *block = realloc(*block, more);
    CHECK(*block != NULL);
    extra += faults() - before;
    check_range(*block, *len, 7);
    for (size_t at = *len; at < more; at += PAGE)
      stamp(*block + at, 7 + at / PAGE);
    *len = more;
  }
  return extra;
}

static void reallocs(void) {
  size_t len = MIB(64);
  char *block = malloc(len);
  CHECK(block != NULL);
  fill(block, len);
  cut(block, len);
  /* Seven steps over 64 to 288 MiB: copies would touch 360,000 pages, or 700 superpages. */
  long extra = by_realloc(&block, &len, MIB(288));
  NOTE("%zu mappings, %ld faults in realloc", memory_of(block, len).mappings, extra);
  if (policy()[0] != '\0' && extra > 100)
    FAIL("realloc copies: %ld faults", extra);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    extra = by_realloc(&block, &len, MIB(352));
    if (policy()[0] != '\0' && extra > 100)
      FAIL("realloc copies in a child: %ld faults", extra);
    _exit(0);
  }
  reap(child, 0);
  check_range(block, len, 7);
  block = realloc(block, MIB(3));
  CHECK(block != NULL);
  check_range(block, MIB(3), 7);
  free(block);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  if (strcmp(argv[1], "realloc") == 0)
    reallocs();
  else
    by_mremap(strcmp(argv[1], "syscall") == 0);
  puts("moves ok");
  return 0;
}
