/* Fills memory that it got by each of the ways that there are, says so, and
 * waits until its input ends, so that a test can look at the process from
 * outside.  Argument: MiB by each of the four ways. */
#include "common.h"
#include <sys/syscall.h>

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 64));
  /* A process is managed once it has asked for some memory. */
  char *first = map_anon(MIB(32));
  CHECK(munmap(first, MIB(32)) == 0);
  int both = PROT_READ | PROT_WRITE, anon = MAP_PRIVATE | MAP_ANONYMOUS;
  char *memory[4] = {
      mmap(NULL, size, both, anon, -1, 0),
      mmap64(NULL, size, both, anon, -1, 0),
      (char *)syscall(SYS_mmap, NULL, size, both, anon, -1, 0),
      malloc(size + PAGE),
  };
  memory[3] = (char *)(((uintptr_t)memory[3] + PAGE - 1) / PAGE * PAGE);
  for (int i = 0; i < 4; i++)
    stamp_range(memory[i], size, i);
  puts("ready");
  fflush(stdout);
  char byte;
  CHECK(read(0, &byte, 1) == 0);
  for (int i = 0; i < 4; i++)
    check_range(memory[i], size, i);
  return 0;
}
