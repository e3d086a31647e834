/* Touches pages in loops whose every instruction is known.
 *
 *   touch plain|huge PAGES MILLISECONDS    a load from each page in turn
 *   touch unadvised PAGES MILLISECONDS     the same, without advice against superpages
 *   touch gather PAGES MILLISECONDS        gathers of four pages each
 *   touch fill PAGES MILLISECONDS          a repeated string instruction
 *
 * A round of `plain` and `huge` executes 4 instructions for each page, one of
 * them a load, and a few around them.
 *
 * It is to be started with SIGTRAP ignored. Then `quire tlb` takes no windows
 * before the loops begin, however long that takes. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define ALIGN ((size_t)2 << 20)

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void loads(const char *from, size_t pages) {
  const char *end = from + pages * PAGE;
  __asm__ volatile("1: movb (%0), %%al\n"
                   "addq $4096, %0\n"
                   "cmpq %1, %0\n"
                   "jne 1b"
                   : "+r"(from)
                   : "r"(end)
                   : "rax", "cc", "memory");
}

__attribute__((target("avx2"))) static void gathers(const char *from, size_t pages) {
  const int64_t offsets[4] = {0, PAGE, 2 * PAGE, 3 * PAGE};
  for (size_t i = 0; i < pages; i += 4) {
    const char *base = from + i * PAGE;
    __asm__ volatile("vmovdqu (%1), %%ymm1\n"
                     "vpcmpeqd %%ymm2, %%ymm2, %%ymm2\n"
                     "vpgatherqq %%ymm2, (%0,%%ymm1), %%ymm0"
                     :
                     : "r"(base), "r"(offsets)
                     : "xmm0", "xmm1", "xmm2", "memory");
  }
}

static void fill(char *from, size_t pages) {
  size_t count = pages * PAGE / 8;
  __asm__ volatile("rep stosq" : "+D"(from), "+c"(count) : "a"(0) : "memory");
}

/* Many rounds, with nothing between them. */
static void rounds(const char *mode, char *memory, size_t pages) {
  enum { ROUNDS = 100 };
  if (strcmp(mode, "gather") == 0)
    for (int i = 0; i < ROUNDS; i++)
      gathers(memory, pages);
  else if (strcmp(mode, "fill") == 0)
    for (int i = 0; i < ROUNDS; i++)
      fill(memory, pages);
  else
    for (int i = 0; i < ROUNDS; i++)
      loads(memory, pages);
}

int main(int argc, char **argv) {
  if (argc < 4)
    return 2;
  const char *mode = argv[1];
  size_t pages = strtoul(argv[2], NULL, 10);
  size_t size = pages * PAGE + 2 * ALIGN;
  char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return 1;
  memory = (char *)(((uintptr_t)memory + ALIGN - 1) & ~(ALIGN - 1));
  int huge = strcmp(mode, "huge") == 0;
  int advice = huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
  if (strcmp(mode, "unadvised") != 0 && madvise(memory, pages * PAGE + ALIGN, advice) != 0 && huge)
    return 3;
  memset(memory, 1, pages * PAGE);
  signal(SIGTRAP, SIG_DFL);
  double end = seconds() + strtod(argv[3], NULL) / 1000;
  while (seconds() < end)
    rounds(mode, memory, pages);
  /* At once: a window may see the end. */
  _exit(0);
}
