/* A library whose constructor uses much memory, as libraries of linear algebra do: the loader's lock is held. */
#include "../programs/promise.h"

int seen_in_constructor;

static __attribute__((constructor)) void start(void) {
  char *memory = grow(MIB(96));
  seen_in_constructor = wait_for_helper(1, has_helper() ? 5 : 0);
  check_range(memory, MIB(96), 1);
}
