/* A child gets no copy of memory that was advised so, and makes use of the hole. */
#include "common.h"

#define HOLE MIB(64)

int main(void) {
  char *gone = map_anon(HOLE), *wiped = map_anon(MIB(4));
  stamp_range(gone, MIB(4), 1);
  stamp_range(wiped, MIB(4), 2);
  CHECK(madvise(gone, HOLE, MADV_DONTFORK) == 0);
  CHECK(madvise(wiped, MIB(4), MADV_WIPEONFORK) == 0);
  for (uint64_t round = 0; round < 4; round++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      check_zero_range(wiped, MIB(2));
      unsigned char resident;
      CHECK_ERRNO(mincore(gone, PAGE, &resident), ENOMEM);
      /* The kernel prefers the highest hole that is large enough. */
      char *small = map_anon(PAGE), *large = map_anon(HOLE / 2);
      stamp(small, 5);
      stamp_range(large, HOLE / 2, 6);
      pid_t grandchild = fork();
      CHECK(grandchild >= 0);
      if (grandchild == 0) {
        stamp_range(map_anon(MIB(8)), MIB(8), 7);
        check_range(large, HOLE / 2, 6);
        _exit(0);
      }
      reap(grandchild, 0);
      CHECK_STAMP(small, 5);
      check_range(large, HOLE / 2, 6);
      check_zero_range(wiped, MIB(4));
      _exit(0);
    }
    reap(child, 0);
    stamp_range(gone + MIB(4) * (round + 1), MIB(4), 3);
  }
  check_range(gone, MIB(4), 1);
  check_range(wiped, MIB(4), 2);
  CHECK(madvise(gone, HOLE, MADV_DOFORK) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check_range(gone, MIB(4), 1);
    check_zero_range(gone + MIB(20), MIB(40));
    _exit(0);
  }
  reap(child, 0);
  puts("holes ok");
  return 0;
}
