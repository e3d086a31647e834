/* Forks in the middle of first touches.  Threads touch new pages all the time,
 * while the main thread and another make children by every way there is.  A child
 * finds each page as it was at the fork or in the middle of being written, goes on
 * touching pages that nobody had touched, and some have children of their own.
 * Arguments: children, threads that touch. */
#include "common.h"
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>

#define QUIET MIB(2)
#define FRESH MIB(4)

extern char **environ;

static char *quiet; /* stamped, and then only read by the parent */
static char *fresh; /* touched by children only */
static _Atomic(char *) *busy; /* what each thread is filling */
static unsigned toucher_count;
static atomic_int stop;
static atomic_ulong touched;

/* A page that another thread may have been writing at the fork. */
static void check_half_written(const char *page, uint64_t value) {
  const volatile uint64_t *words = (const volatile void *)page;
  for (unsigned place = 0; place < STAMPS; place++) {
    uint64_t word = words[place * 64 + place];
    if (word != 0 && word != stamp_word(value, place))
      FAIL("page %p: %#llx at place %u", (const void *)page, (unsigned long long)word, place);
  }
}

static void *touch(void *argument) {
  unsigned long self = (unsigned long)argument;
  for (uint64_t round = 1; !atomic_load(&stop); round++) {
    char *memory = map_anon(MIB(1));
    atomic_store(&busy[self], memory);
    for (size_t i = 0; i < MIB(1) / PAGE; i++) {
      /* In order, and not in order. */
      size_t page = round % 2 == 0 ? i : i * 97 % (MIB(1) / PAGE);
      CHECK_STAMP(memory + page * PAGE, 0);
      stamp(memory + page * PAGE, 1000 + page);
      atomic_fetch_add(&touched, 1);
    }
    for (size_t page = 0; page < MIB(1) / PAGE; page++)
      CHECK_STAMP(memory + page * PAGE, 1000 + page);
    atomic_store(&busy[self], NULL);
    CHECK(munmap(memory, MIB(1)) == 0);
  }
  return NULL;
}

/* What any descendant does with what it got. */
static void as_child(uint64_t number, unsigned generations) {
  check_range(quiet, QUIET, 1);
  for (unsigned i = 0; i < toucher_count; i++) {
    const char *memory = atomic_load(&busy[i]);
    if (memory != NULL && generations == 0)
      for (size_t page = 0; page < MIB(1) / PAGE; page++)
        check_half_written(memory + page * PAGE, 1000 + page);
  }
  for (size_t page = number % 16; page < QUIET / PAGE; page += 16)
    stamp(quiet + page * PAGE, 1 + page); /* a copy, with the same in it */
  for (size_t page = number % 64 + generations; page < FRESH / PAGE; page += 64) {
    CHECK_STAMP(fresh + page * PAGE, 0);
    stamp(fresh + page * PAGE, number + generations);
  }
  char *own = map_anon(MIB(1));
  check_zero_range(own, MIB(1) / 2);
  stamp_range(own, MIB(1), number);
  if (generations > 0) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      check_range(own, MIB(1), number);
      stamp_range(own, MIB(1), number + 1);
      as_child(number, generations - 1);
      _exit(9);
    }
    stamp_range(own + MIB(1) / 2, MIB(1) / 2, number + 2);
    reap(child, 9);
    check_range(own, MIB(1) / 2, number);
    check_range(own + MIB(1) / 2, MIB(1) / 2, number + 2);
  }
  check_range(quiet, QUIET, 1);
}

static void by_fork(uint64_t number) {
  pid_t child = number % 2 == 0 ? fork() : _Fork();
  CHECK(child >= 0);
  if (child == 0) {
    as_child(number, number % 8 == 0 ? 2 : 0);
    _exit(9);
  }
  reap(child, 9);
}

static void *from_thread(void *argument) {
  (void)argument;
  for (uint64_t number = 1; !atomic_load(&stop); number += 7) {
    by_fork(number);
    sleep_ms(5);
  }
  return NULL;
}

static void by_others(uint64_t number) {
  char *argv[] = {"sh", "-c", "exit 9", NULL};
  pid_t child;
  switch (number % 4) {
  case 0:
    child = vfork();
    if (child == 0) {
      execv("/bin/sh", argv);
      _exit(1);
    }
    reap(child, 9);
    break;
  case 1:
    CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, argv, environ) == 0);
    reap(child, 9);
    break;
  case 2:
    CHECK(WEXITSTATUS(system("exit 9")) == 9);
    break;
  default: {
    FILE *pipe = popen("echo out; exit 9", "r");
    char line[16];
    CHECK(pipe != NULL && fgets(line, sizeof line, pipe) && strcmp(line, "out\n") == 0);
    CHECK(WEXITSTATUS(pclose(pipe)) == 9);
  }
  }
}

int main(int argc, char **argv) {
  uint64_t children = argument(argc, argv, 1, 200);
  toucher_count = (unsigned)argument(argc, argv, 2, 3);
  quiet = map_anon(QUIET);
  stamp_range(quiet, QUIET, 1);
  fresh = map_anon(FRESH);
  busy = calloc(toucher_count, sizeof *busy);
  pthread_t touchers[16], forker;
  CHECK(busy != NULL && toucher_count <= 16);
  for (unsigned long i = 0; i < toucher_count; i++)
    CHECK(pthread_create(&touchers[i], NULL, touch, (void *)i) == 0);
  CHECK(pthread_create(&forker, NULL, from_thread, NULL) == 0);
  for (uint64_t number = 0; number < children; number++) {
    by_fork(number);
    if (number % 10 == 0)
      by_others(number / 10);
    /* Nothing that a child wrote is here. */
    CHECK_STAMP(quiet + number % (QUIET / PAGE) * PAGE, 1 + number % (QUIET / PAGE));
    CHECK_STAMP(fresh + number % (FRESH / PAGE) * PAGE, 0);
  }
  atomic_store(&stop, 1);
  for (unsigned i = 0; i < toucher_count; i++)
    CHECK(pthread_join(touchers[i], NULL) == 0);
  CHECK(pthread_join(forker, NULL) == 0);
  CHECK(atomic_load(&touched) > children);
  check_range(quiet, QUIET, 1);
  check_zero_range(fresh, FRESH);
  puts("forks ok");
  return 0;
}
