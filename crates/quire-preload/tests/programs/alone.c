/* A process that has not grown has one thread, and may do what only such a process may: have a user namespace. */
#include "promise.h"
#include <sched.h>

int main(void) {
  char *memory = grow(MIB(8));
  sleep_ms(200);
  CHECK(threads() == 1);
  printf("unshare: %s\n", unshare(CLONE_NEWUSER) == 0 ? "ok" : strerror(errno));
  check_range(memory, MIB(8), 1);
  memory = grow(MIB(128));
  sleep_ms(500);
  check_range(memory, MIB(128), 1);
  puts("alone ok");
  return 0;
}
