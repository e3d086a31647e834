/* Memory that is filled in order is on superpages: most of it when it is filled, all of it a little later.
 * Arguments: malloc, mmap, brk or pieces; MiB. */
#include "promise.h"
#include <sys/wait.h>

/* Seconds for the copies: where no block is free, the kernel moves pages for each, and a tenth of a processor is spent
 * on all of that. */
enum { PATIENCE = 60 };

static char *take(const char *how, size_t len) {
  if (strcmp(how, "malloc") == 0)
    return malloc(len);
  if (strcmp(how, "mmap") == 0)
    return map_anon(len);
  char *start = sbrk(0);
  CHECK(sbrk((intptr_t)len) == start);
  return start;
}

/* Many small blocks, as programs have them: the heap grows with them. */
static char *pieces(size_t len) {
  char *first = NULL;
  for (size_t got = 0; got < len; got += 1024) {
    char *block = malloc(1000);
    CHECK(block != NULL);
    memset(block, 3, 1000);
    first = first != NULL ? first : block;
  }
  return first;
}

static void attempt(char **argv) {
  size_t len = MIB(strtoul(argv[2], NULL, 0));
  /* What is asked for by brk is not noticed by itself. */
  if (strcmp(argv[1], "brk") == 0)
    grow_up();
  char *memory;
  double begin = seconds();
  if (strcmp(argv[1], "pieces") == 0) {
    memory = pieces(len);
  } else {
    memory = take(argv[1], len);
    CHECK(memory != NULL);
    memset(memory, 3, len);
  }
  double filled = seconds() - begin;
  double at_once = huge_percent(memory, len);
  /* The heap grows in steps smaller than a superpage: there is none at the first touch. */
  int in_steps = strcmp(argv[1], "pieces") == 0;
  /* A heap that the program enlarges itself is seen at the next look. */
  double least = in_steps ? 0 : strcmp(argv[1], "brk") == 0 ? 40 : 70;
  /* Extents at both ends of a heap are not whole, nor are a few in which the heap was cut while it grew. */
  double most = in_steps ? 97 : 98;
  double late = policy_is("adaptive") ? wait_for_huge(memory, len, most, PATIENCE) : huge_percent(memory, len);
  double after = seconds() - begin - filled;
  if (policy_is("adaptive") && (at_once < least || late < most))
    FAIL("%.1f %% on superpages when filled (%.2f s), %.1f %% after %.1f s", at_once, filled, late, after);
  if (policy_is("eager") && late < (least > 40 ? 98 : least))
    FAIL("%.1f %% on superpages", late);
  if (!has_helper() && late > 0)
    FAIL("%.1f %% on superpages", late);
  NOTE("%s: filled in %.2f s, %.1f %% on superpages then, %.1f %% after %.1f s", argv[1], filled, at_once, late, after);
  for (size_t i = 0; i < len / 2; i += PAGE)
    CHECK(in_steps || memory[i] == 3);
}

/* A virtual machine's host may hand memory over at the very moment, and the library's thread may not get to run
 * meanwhile: so one of three attempts has to do, each in a process of its own. */
int main(int argc, char **argv) {
  needs_advised_superpages();
  CHECK(argc == 3);
  int status = 1;
  for (int attempts = 0; attempts < 3 && status != 0; attempts++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      attempt(argv);
      _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
  }
  if (status != 0)
    FAIL("in none of three attempts");
  puts("dense ok");
  return 0;
}
