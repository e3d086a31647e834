/* Memory that is looked at and changed from outside while the program runs: pages all
 * of which it touched, of which it touched some, and of which it touched none.  Says
 * where they are, and obeys lines: "abort", "check" (that another process wrote what
 * it should), "touch" (each page that is left), or the end. */
#include "common.h"

#define TOUCHED MIB(1)
#define DOTTED MIB(4)
#define FRESH MIB(2)

/* For a debugger, by name. */
char *touched, *dotted, *fresh;

static int is_dot(size_t page) { return page % 8 == 2; }

static void say(const char *name, const char *memory, size_t size) {
  printf("%s %lx %lx\n", name, (unsigned long)memory, (unsigned long)(memory + size));
}

/* The test has written page numbers into the second word of some pages. */
static void check_written(void) {
  for (size_t page = 0; page < TOUCHED / PAGE; page += 4)
    CHECK(((uint64_t *)(touched + page * PAGE))[1] == page);
  for (size_t page = 0; page < FRESH / PAGE; page += 4)
    CHECK(((uint64_t *)(fresh + page * PAGE))[1] == page);
}

static void touch_rest(void) {
  for (size_t page = 0; page < DOTTED / PAGE; page++)
    if (!is_dot(page)) {
      CHECK_STAMP(dotted + page * PAGE, 0);
      stamp(dotted + page * PAGE, 7);
    }
}

int main(void) {
  touched = map_anon(TOUCHED);
  stamp_range(touched, TOUCHED, 100);
  dotted = map_anon(DOTTED);
  for (size_t page = 0; page < DOTTED / PAGE; page++)
    if (is_dot(page))
      stamp(dotted + page * PAGE, 200 + page);
  fresh = map_anon(FRESH);
  say("touched", touched, TOUCHED);
  say("dotted", dotted, DOTTED);
  say("fresh", fresh, FRESH);
  puts("ready");
  fflush(stdout);
  char line[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (strcmp(line, "abort\n") == 0)
      abort();
    if (strcmp(line, "check\n") == 0)
      check_written();
    if (strcmp(line, "touch\n") == 0)
      touch_rest();
    puts("done");
    fflush(stdout);
  }
  check_range(touched, TOUCHED, 100);
  for (size_t page = 0; page < DOTTED / PAGE; page++)
    if (is_dot(page))
      CHECK_STAMP(dotted + page * PAGE, 200 + page);
  return 0;
}
