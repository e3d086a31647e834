/* Removes memory while it is in use, and makes it anew: a child that ends later leaves the new one.
 *
 *     remade before NAME   the child is forked when it was made anew
 *     remade after NAME    the child is forked before, and has had the old one */
#include "common.h"

#define SIZE 4096

static unsigned char *map(const char *name, int flags) {
  int fd = shm_open(name, flags | O_RDWR, 0600);
  CHECK(fd >= 0);
  if (flags != 0)
    CHECK(ftruncate(fd, SIZE) == 0);
  unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED && close(fd) == 0);
  return at;
}

static void await(int fd) {
  char byte;
  CHECK(read(fd, &byte, 1) == 1);
}

static void tell(int fd) { CHECK(write(fd, "", 1) == 1); }

int main(int argc, char **argv) {
  CHECK(argc == 3);
  int is_after = strcmp(argv[1], "after") == 0;
  int to_child[2], to_parent[2];
  CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
  unsigned char *at = map(argv[2], O_CREAT | O_EXCL);
  CHECK(shm_unlink(argv[2]) == 0);
  if (!is_after) {
    /* It goes with its last mapping. */
    CHECK(munmap(at, SIZE) == 0);
    FAILS(shm_open(argv[2], O_RDWR, 0) < 0, ENOENT);
    at = map(argv[2], O_CREAT | O_EXCL);
    at[0] = 7;
  }
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(munmap(at, SIZE) == 0);
    tell(to_parent[1]);
    await(to_child[0]);
    exit(0);
  }
  await(to_parent[0]);
  CHECK(munmap(at, SIZE) == 0);
  if (is_after) {
    FAILS(shm_open(argv[2], O_RDWR, 0) < 0, ENOENT);
    at = map(argv[2], O_CREAT | O_EXCL);
    at[0] = 7;
    CHECK(munmap(at, SIZE) == 0);
  }
  tell(to_child[1]);
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  at = map(argv[2], 0);
  CHECK(at[0] == 7 && munmap(at, SIZE) == 0);
  CHECK(shm_unlink(argv[2]) == 0);
  FAILS(shm_open(argv[2], O_RDWR, 0) < 0, ENOENT);
  return 0;
}
