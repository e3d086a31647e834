/* A limit of file sizes, which memory must not be concerned by: set by the program, and found at its start (it runs
 * itself again).  It raises no signal, nothing is lost, and children go on, too.
 * Argument: a stage, internally. */
#include "common.h"
#include <sys/resource.h>

static void use(void) {
  char *kept = malloc(MIB(40));
  CHECK(kept != NULL);
  memset(kept, 1, MIB(40));
  for (unsigned round = 0; round < 4; round++) {
    size_t size = MIB(30 + 20 * round);
    char *memory = map_anon(size);
    stamp_range(memory, size, round);
    char *moved = mremap(memory, size, size + MIB(20), MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    check_range(moved, size, round);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      memset(kept, 2, MIB(40));
      char *fresh = malloc(MIB(50));
      CHECK(fresh != NULL);
      memset(fresh, 3, MIB(50));
      _exit(0);
    }
    reap(child, 0);
    CHECK(munmap(moved, size + MIB(20)) == 0);
  }
  for (size_t i = 0; i < MIB(40); i++)
    CHECK(kept[i] == 1);
  free(kept);
}

int main(int argc, char **argv) {
  if (argc == 1)
    use();
  struct rlimit none;
  CHECK(getrlimit(RLIMIT_FSIZE, &none) == 0);
  none.rlim_cur = 0;
  CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
  use();
  if (argc == 1)
    execv("/proc/self/exe", (char *[]){argv[0], "again", NULL});
  /* What is printed may go to a file. */
  none.rlim_cur = none.rlim_max;
  CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
  puts("ok");
  return 0;
}
