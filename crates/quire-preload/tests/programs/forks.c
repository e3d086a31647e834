/* A program that forks, as a database that saves itself does: the child reads what it was given while the parent
 * goes on writing; afterwards the parent has its superpages back. The child has one thread until it has grown, and
 * then a helper of its own, in whatever way it was made. */
#define _GNU_SOURCE
#include "promise.h"
#include <sched.h>
#include <sys/syscall.h>

static void child_is_alone(void) {
  if (threads() != 1)
    FAIL("a child begins with %d threads", threads());
  CHECK(wait_for_helper(0, 0));
}

static void grows_up(const char *how) {
  child_is_alone();
  char *memory = grow(MIB(100));
  if (has_helper() && !wait_for_helper(1, 5))
    FAIL("a child made by %s has no helper", how);
  check_range(memory, MIB(100), 1);
  _exit(0);
}

int main(void) {
  needs_advised_superpages();
  size_t len = MIB(256);
  char *memory = map_anon(len);
  stamp_range(memory, len, 1);
  double all = wait_for_huge(memory, len, 98, has_helper() ? 60 : 0);
  CHECK(!has_helper() || all >= 98);

  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    child_is_alone();
    for (int round = 0; round < 10; round++) {
      check_range(memory, len, 1);
      sleep_ms(100);
    }
    child_is_alone();
    _exit(0);
  }
  uint64_t state = 3;
  for (int status; waitpid(child, &status, WNOHANG) == 0; sleep_ms(1))
    for (int i = 0; i < 20; i++) {
      size_t page = below(&state, len / PAGE);
      stamp(memory + page * PAGE, 1 + page);
    }
  double end = seconds(), percent = wait_for_huge(memory, len, 95, policy_is("adaptive") ? 10 : 0);
  NOTE("%.1f %% on superpages %.1f s after the child's end", percent, seconds() - end);
  if (policy_is("adaptive") && percent < 95)
    FAIL("only %.1f %% are back on superpages 10 s after the child's end", percent);
  if (policy_is("adaptive") && seconds() - end > 3)
    NOTE("LATE: more than 3 s");
  check_range(memory, len, 1);

  if ((child = fork()) == 0)
    grows_up("fork");
  reap(child, 0);
  if ((child = _Fork()) == 0)
    grows_up("_Fork");
  reap(child, 0);
  if ((child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) == 0)
    grows_up("clone");
  reap(child, 0);
  /* A grandchild, too. */
  if ((child = fork()) == 0) {
    grow_up();
    if ((child = fork()) == 0)
      grows_up("a child");
    reap(child, 0);
    _exit(0);
  }
  reap(child, 0);
  puts("forks ok");
  return 0;
}
