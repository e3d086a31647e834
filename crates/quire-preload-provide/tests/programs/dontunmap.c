/* Memory that is moved with MREMAP_DONTUNMAP while another thread looks for free
 * addresses: the old ones must never be free meanwhile, or the other thread's mapping is
 * in the way of the zeros that the program expects there.
 * Argument: moves. */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>

/* Where the other thread is to look, and whether it does. */
static _Atomic(char *) watched;
static atomic_int looks, stop;

static void *look_for_holes(void *unused) {
  while (!stop) {
    looks = 1;
    char *at = watched;
    if (at != NULL) {
      int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
      char *got = mmap(at, PAGE, PROT_READ, flags, -1, 0);
      if (got != MAP_FAILED)
        FAIL("%p was free while it was moved from", (void *)at);
      CHECK(errno == EEXIST);
    }
    looks = 0;
  }
  return unused;
}

static void move_once(size_t size, uint64_t tag) {
  char *old = map_anon(size);
  stamp_range(old, size, tag);
  /* The last page is free for longest where pages go one after another. */
  watched = tag % 2 == 0 ? old : old + size - PAGE;
  char *moved = mremap(old, size, size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
  CHECK(moved != MAP_FAILED);
  watched = NULL;
  while (looks)
    ;
  check_zero_range(old, size);
  check_range(moved, size, tag);
  stamp_range(old, size, tag + 7);
  check_range(old, size, tag + 7);
  check_range(moved, size, tag);
  CHECK(munmap(old, size) == 0 && munmap(moved, size) == 0);
}

int main(int argc, char **argv) {
  uint64_t moves = argument(argc, argv, 1, 100);
  pthread_t looker;
  CHECK(pthread_create(&looker, NULL, look_for_holes, NULL) == 0);
  for (uint64_t i = 1; i <= moves; i++)
    move_once(i % 3 == 0 ? MIB(8) + 5 * PAGE : MIB(4), i << 20 | i);
  stop = 1;
  CHECK(pthread_join(looker, NULL) == 0);
  return 0;
}
