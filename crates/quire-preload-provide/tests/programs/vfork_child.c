/* A child of vfork, which shares the memory of its parent until it runs another program, maps and allocates, before
 * its parent has much memory and after: the parent goes on with what the child left, and no thread is lost with the
 * child. */
#include "common.h"
#include <sys/wait.h>

static char *volatile left;

static void child_uses(void) {
  pid_t child = vfork();
  CHECK(child >= 0);
  if (child == 0) {
    char *memory = map_anon(MIB(32));
    stamp_range(memory, MIB(32), 3);
    char *heap = malloc(MIB(20));
    if (heap == NULL)
      _exit(1);
    memset(heap, 4, MIB(20));
    free(heap);
    left = memory;
    _exit(0);
  }
  reap(child, 0);
  check_range(left, MIB(32), 3);
  stamp_range(left, MIB(32), 4);
  CHECK(munmap(left, MIB(32)) == 0);
}

static void use(void) {
  char *memory = map_anon(MIB(64));
  stamp_range(memory, MIB(64), 1);
  check_range(memory, MIB(64), 1);
  CHECK(munmap(memory, MIB(64)) == 0);
}

int main(void) {
  child_uses();
  use();
  child_uses();
  use();
  puts("ok");
  return 0;
}
