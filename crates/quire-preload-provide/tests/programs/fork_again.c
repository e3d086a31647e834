/* A fork of memory that an earlier fork left private, as an ordinary user's stays: what the parent
 * gives up afterwards is the second child's still, also when memory that is new since then goes
 * through a fork of its own meanwhile. */
#include "common.h"

#define LENGTH MIB(32)
/* Longer than the library takes to see that a child has ended. */
#define LOOKS_MS 400

static char *filled(uint64_t tag) {
  char *memory = map_anon(LENGTH);
  stamp_range(memory, LENGTH, tag);
  return memory;
}

static void fork_and_reap(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0)
    _exit(0);
  reap(child, 0);
  sleep_ms(LOOKS_MS);
}

/* A child that checks the memory when `go` can be read from. */
static pid_t watcher(const char *memory, int go) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    char byte;
    CHECK(read(go, &byte, 1) == 1);
    check_range(memory, LENGTH, 7);
    _exit(0);
  }
  return child;
}

/* Each quarter in another way. */
static void give_up(char *memory) {
  size_t quarter = LENGTH / 4;
  CHECK(munmap(memory, quarter) == 0);
  CHECK(madvise(memory + quarter, quarter, MADV_DONTNEED) == 0);
  check_zero_range(memory + quarter, quarter);
  char *third = memory + 2 * quarter;
  CHECK(mmap(third, quarter, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == third);
  check_zero_range(third, quarter);
  (void)madvise(third + quarter, quarter, MADV_NOHUGEPAGE);
  check_range(third + quarter, quarter, 7 + 3 * quarter / PAGE);
}

static void once(int with_another) {
  int go[2];
  CHECK(pipe(go) == 0);
  char *memory = filled(7);
  fork_and_reap();
  pid_t child = watcher(memory, go[0]);
  give_up(memory);
  if (with_another) {
    char *other = filled(99);
    fork_and_reap();
    check_range(other, LENGTH, 99);
    CHECK(munmap(other, LENGTH) == 0);
  }
  sleep_ms(LOOKS_MS);
  CHECK(write(go[1], "", 1) == 1);
  reap(child, 0);
  CHECK(munmap(memory + LENGTH / 4, LENGTH / 4 * 3) == 0);
  CHECK(close(go[0]) == 0 && close(go[1]) == 0);
}

int main(void) {
  once(0);
  once(1);
  puts("fork_again ok");
  return 0;
}
