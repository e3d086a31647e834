/* A process to attach to. It does what the lines on its input say, and answers
 * each with one line. It knows what every page of its memory must hold. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 512, WORDS = PAGE / 8 };
static const size_t EXTENT = 2 << 20;

static char *memory;
static size_t extents, populated;
static pid_t child;

/* Whether a page was given contents: `populated` of each extent, spread evenly. */
static int holds(size_t page) {
  size_t i = page % PAGES;
  return i * populated / PAGES != (i + 1) * populated / PAGES;
}

static uint64_t word(size_t page, uint64_t round) {
  uint64_t x = (page + 1) * 0x9e3779b97f4a7c15u ^ round * 0xbf58476d1ce4e5b9u;
  return x | 1;
}

static void write_page(size_t page, uint64_t round) {
  uint64_t *at = (uint64_t *)(memory + page * PAGE);
  at[0] = at[WORDS / 2] = at[WORDS - 1] = word(page, round);
}

static int is_right(size_t page, uint64_t round) {
  uint64_t *at = (uint64_t *)(memory + page * PAGE);
  uint64_t want = word(page, round);
  return at[0] == want && at[WORDS / 2] == want && at[WORDS - 1] == want && at[1] == 0;
}

/* Maps memory at the boundary of an extent, private or of a memory file. */
static void map(size_t count, size_t fill, int file) {
  size_t len = (count + 1) * EXTENT;
  char *start = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) exit(3);
  memory = (char *)(((uintptr_t)start + EXTENT - 1) & ~(EXTENT - 1));
  if (file >= 0) {
    len = count * EXTENT;
    int flags = MAP_SHARED | MAP_FIXED;
    if (ftruncate(file, len)) exit(3);
    if (mmap(memory, len, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED) exit(3);
  }
  extents = count;
  populated = fill;
  /* On base pages, whatever the kernel does by itself. */
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  for (size_t page = 0; page < extents * PAGES; page++)
    if (holds(page)) write_page(page, 0);
  prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

static int check(uint64_t round) {
  for (size_t page = 0; page < extents * PAGES; page++)
    if (holds(page) && !is_right(page, round)) return 0;
  return 1;
}

/* Holes must read as zeros. */
static int check_holes(void) {
  for (size_t page = 0; page < extents * PAGES; page++)
    for (size_t i = 0; !holds(page) && i < PAGE; i++)
      if (memory[page * PAGE + i]) return 0;
  return 1;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

/* Writes and reads all the time. */
static int churn(double seconds) {
  double end = now() + seconds;
  uint64_t round = 0;
  while (now() < end) {
    if (!check(round)) return 0;
    round++;
    for (size_t page = 0; page < extents * PAGES; page++)
      if (holds(page)) write_page(page, round);
  }
  int ok = check(round);
  for (size_t page = 0; page < extents * PAGES; page++)
    if (holds(page)) write_page(page, 0);
  return ok;
}

/* Maps, unmaps and forks all the time. */
static int mess(double seconds) {
  double end = now() + seconds;
  for (unsigned n = 0; now() < end; n++) {
    size_t len = 3 * EXTENT;
    char *more = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) return 0;
    memset(more, 7, len);
    pid_t pid = fork();
    if (pid < 0) return 0;
    if (pid == 0) {
      int right = check(0) && more[n % len] == 7;
      for (size_t page = 0; page < extents * PAGES; page += 3)
        if (holds(page)) write_page(page, 9);
      _exit(right ? 0 : 1);
    }
    munmap(more + PAGE * (n % 512), EXTENT);
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0) return 0;
    munmap(more, len);
    if (!check(0)) return 0;
  }
  return 1;
}

/* Touches one eighth of the memory for a time. */
static void heat(size_t eighth, double seconds) {
  size_t from = extents * PAGES / 8 * eighth, count = extents * PAGES / 8;
  volatile uint64_t sum = 0;
  double end = now() + seconds;
  while (now() < end)
    for (size_t n = 0; n < count; n++) sum += *(uint64_t *)(memory + (from + n) * PAGE);
}

/* A child that does nothing, and does not outlive its parent. */
static void wait_for_the_end(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close(0), close(1), close(2);
  for (;;) pause();
}

int main(int argc, char **argv) {
  char line[256], name[64];
  double a, b;
  (void)argc;
  while (fgets(line, sizeof line, stdin)) {
    int got = sscanf(line, "%63s %lf %lf", name, &a, &b);
    const char *answer = "ok";
    if (got == 3 && !strcmp(name, "map")) map(a, b, -1);
    else if (got == 3 && !strcmp(name, "shared")) map(a, b, memfd_create("subject", 0));
    else if (!strcmp(name, "plain")) madvise(memory, extents * EXTENT, MADV_NOHUGEPAGE);
    else if (!strcmp(name, "check")) answer = check(0) ? "ok" : "bad";
    else if (!strcmp(name, "holes")) answer = check_holes() ? "ok" : "bad";
    else if (!strcmp(name, "churn")) answer = churn(a) ? "ok" : "bad";
    else if (!strcmp(name, "mess")) answer = mess(a) ? "ok" : "bad";
    else if (got == 3 && !strcmp(name, "heat")) heat(a, b);
    else if (!strcmp(name, "unmap")) munmap(memory, extents * EXTENT), extents = 0;
    else if (!strcmp(name, "fork")) {
      child = fork();
      if (!child) wait_for_the_end();
    } else if (!strcmp(name, "reap")) kill(child, SIGKILL), waitpid(child, 0, 0);
    else if (!strcmp(name, "exec")) puts("ok"), fflush(stdout), execv("/proc/self/exe", argv);
    else answer = "what?";
    puts(answer);
    fflush(stdout);
  }
  return 0;
}
