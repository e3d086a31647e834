/* What the allocator keeps of a large block that is freed: all of it for the next
 * large request, and afterwards nothing that this one does not use. Numbers are
 * those of the library's allocator; without it nothing is compared. */
#include "common.h"
#include <sys/resource.h>

extern int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));

enum { CYCLES = 20 };

static long resident_kib(void) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[200];
  long kib = -1;
  CHECK(file != NULL);
  while (fgets(line, sizeof line, file) != NULL)
    sscanf(line, "VmRSS: %ld kB", &kib);
  CHECK(fclose(file) == 0);
  return kib;
}

static long faults(void) {
  struct rusage usage;
  CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return usage.ru_minflt;
}

static char *filled(size_t length) {
  char *block = malloc(length);
  CHECK(block != NULL);
  for (size_t at = 0; at < length; at += PAGE)
    *(volatile char *)(block + at) = 1;
  return block;
}

static void expect_below(const char *what, long found, long bound) {
  if (mallctl != NULL && found >= bound)
    FAIL("%s: %ld, wanted less than %ld", what, found, bound);
}

static void a_large_block_is_kept_for_the_next(size_t length) {
  free(filled(length));
  long before = faults();
  for (int i = 0; i < CYCLES; i++)
    free(filled(length));
  expect_below("faults", faults() - before, (long)(CYCLES * length / PAGE / 4));
}

/* What is prepared ahead counts twice for as long as that takes. */
static void expect_resident_below(const char *what, long bound) {
  for (int tries = 0; tries < 1000 && resident_kib() >= bound; tries++)
    sleep_ms(10);
  expect_below(what, resident_kib(), bound);
}

/* A block as large as this is given back when it is freed. */
static void a_very_large_block_goes_back(long before) {
  free(filled(MIB(40)));
  expect_resident_below("KiB kept of a very large block", before + (8 << 10));
}

static void what_the_next_does_not_use_goes_back(long before) {
  free(filled(MIB(30)));
  char *block = filled(MIB(10));
  expect_resident_below("KiB kept of a large block", before + (16 << 10));
  free(block);
}

int main(void) {
  /* Enough to be managed. */
  free(filled(MIB(40)));
  long before = resident_kib();
  a_large_block_is_kept_for_the_next(MIB(10));
  a_large_block_is_kept_for_the_next(MIB(16));
  a_large_block_is_kept_for_the_next(MIB(24));
  what_the_next_does_not_use_goes_back(before);
  a_very_large_block_goes_back(before);
  puts("kept ok");
  return 0;
}
