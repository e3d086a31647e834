/* Descriptors of an object in a program that another one executes.
 *
 *     inherited NAME       makes it, removes its name, and executes others that have its descriptors
 *     inherited - RW R     what these find: one descriptor that may be written to, and one that may not */
#include "common.h"

#include <spawn.h>

#define SIZE 5000

extern char **environ;

static int finds(int both, int to_read) {
  struct stat about;
  CHECK(fstat(both, &about) == 0 && about.st_size == SIZE);
  unsigned char last = 0;
  CHECK(pread(both, &last, 1, SIZE - 1) == 1 && last == 8);
  unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, both, 0);
  CHECK(at != MAP_FAILED && at[0] == 7);
  at[1]++;
  CHECK(munmap(at, SIZE) == 0);
  FAILS(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, to_read, 0) == MAP_FAILED, EACCES);
  at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, to_read, 0);
  CHECK(at != MAP_FAILED && at[0] == 7);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc >= 2);
  if (argc == 4)
    return finds(atoi(argv[2]), atoi(argv[3]));
  int fd = shm_open(argv[1], O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  at[0] = 7;
  at[SIZE - 1] = 8;
  /* `dup` clears what would close them. */
  int both = dup(fd), to_read = dup(shm_open(argv[1], O_RDONLY, 0));
  CHECK(both >= 0 && to_read >= 0 && shm_unlink(argv[1]) == 0);
  char numbers[2][16];
  snprintf(numbers[0], sizeof numbers[0], "%d", both);
  snprintf(numbers[1], sizeof numbers[1], "%d", to_read);
  char *arguments[] = {argv[0], "-", numbers[0], numbers[1], NULL};
  for (int forks = 0; forks < 2; forks++) {
    pid_t child;
    int status;
    if (forks) {
      child = fork();
      if (child == 0) {
        execv("/proc/self/exe", arguments);
        _exit(127);
      }
    } else {
      CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(at[1] == forks + 1);
  }
  return 0;
}
