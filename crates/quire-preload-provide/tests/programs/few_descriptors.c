/* A low limit of descriptors, set before anything is mapped, and while memory is in use, and found at the start of the
 * program: all memory works.  Argument: a stage, internally. */
#include "common.h"
#include <sys/resource.h>
#include <sys/wait.h>

static void limit(rlim_t most) {
  struct rlimit now = {most, most};
  CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0);
}

/* Twice as much, of which half is from malloc.  With 64 MiB a program has grown, and what the library does begins. */
static void use(size_t size) {
  char *memory = map_anon(size);
  stamp_range(memory, size, 1);
  char *heap = malloc(size);
  CHECK(heap != NULL);
  memset(heap, 2, size);
  check_range(memory, size, 1);
  CHECK(heap[size / 2] == 2);
  CHECK(munmap(memory, size) == 0);
  free(heap);
}

/* The limit in a child, before or after it has used memory; the child runs the program again if asked to. */
static void child_with(rlim_t most, int first, char *again) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(30);
    if (first)
      use(MIB(36));
    limit(most);
    use(MIB(36));
    use(MIB(12));
    if (again != NULL)
      execv("/proc/self/exe", (char *[]){again, "again", NULL});
    _exit(0);
  }
  reap(child, 0);
}

int main(int argc, char **argv) {
  if (argc > 1) {
    alarm(30);
    use(MIB(36));
    return 0;
  }
  for (rlim_t most = 0; most < 9; most++) {
    child_with(most, 0, NULL);
    child_with(most, 1, NULL);
  }
  /* The loader needs one for each library. */
  for (rlim_t most = 4; most < 9; most++)
    child_with(most, 0, argv[0]);
  use(MIB(36));
  puts("ok");
  return 0;
}
