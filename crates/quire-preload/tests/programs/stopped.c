/* A process that is stopped and goes on again, again and again, while it uses memory: it stops at once, loses
 * nothing, and ends. */
#include "promise.h"
#include <signal.h>

static void work(void) {
  char *kept = grow_up();
  for (int round = 0; round < 60; round++) {
    char *memory = grow(MIB(16));
    check_range(memory, MIB(16), 1);
    CHECK(munmap(memory, MIB(16)) == 0);
    sleep_ms(5);
  }
  check_range(kept, MIB(96), 1);
  _exit(0);
}

int main(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0)
    work();
  int status = 0, stops = 0;
  for (;; stops++) {
    CHECK(kill(child, SIGSTOP) == 0);
    double begin = seconds();
    CHECK(waitpid(child, &status, WUNTRACED) == child);
    if (!WIFSTOPPED(status))
      break;
    if (seconds() - begin > 2)
      FAIL("stopped after %.1f s", seconds() - begin);
    sleep_ms(3);
    CHECK(kill(child, SIGCONT) == 0);
    sleep_ms(17);
  }
  CHECK(status == 0 && stops > 3);
  puts("stopped ok");
  return 0;
}
