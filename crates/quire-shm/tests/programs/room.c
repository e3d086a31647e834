/* Sees to it that there is room in shared memory, which takes no memory for an object's file.
 *
 *     room NAME */
#include "common.h"

#include <sys/syscall.h>

#define PAGE 4096
#define SIZE (16 * PAGE)

/* As the kernel has the file: the library shows the object's size. */
static long blocks(int fd) {
  struct stat about;
  CHECK(syscall(SYS_fstat, fd, &about) == 0);
  return about.st_blocks;
}

int main(int argc, char **argv) {
  struct stat about;
  CHECK(argc == 2);
  int fd = shm_open(argv[1], O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(fd >= 0);
  /* It gets its size so, too. */
  CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, SIZE) == 0);
  CHECK(fstat(fd, &about) == 0 && about.st_size == 0);
  CHECK(posix_fallocate(fd, PAGE, SIZE - PAGE) == 0);
  CHECK(fstat(fd, &about) == 0 && about.st_size == SIZE);
  unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  at[SIZE - 1] = 7;

  CHECK(posix_fallocate(fd, 0, SIZE) == 0 && posix_fallocate64(fd, PAGE, 1) == 0);
  CHECK(fallocate(fd, 0, 0, SIZE) == 0 && fallocate64(fd, 0, SIZE - 1, 1) == 0);
  CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 2 * SIZE) == 0);
  CHECK(blocks(fd) == 0 && at[SIZE - 1] == 7);

  CHECK(posix_fallocate(fd, 1, SIZE) == EFBIG && posix_fallocate(fd, 0, 0) == EINVAL);
  FAILS(fallocate(fd, 0, SIZE, 1) < 0, EFBIG);
  FAILS(fallocate(fd, 0, -1, 5) < 0, EINVAL);
  FAILS(fallocate(fd, 0, INT64_MAX, 5) < 0, EFBIG);
  FAILS(fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, PAGE) < 0, EOPNOTSUPP);
  int to_read = shm_open(argv[1], O_RDONLY, 0);
  CHECK(to_read >= 0 && posix_fallocate(to_read, 0, PAGE) == EBADF);
  CHECK(fstat(fd, &about) == 0 && about.st_size == SIZE && blocks(fd) == 0);

  /* Other files are the system's. */
  int other = memfd_create("other", 0);
  CHECK(other >= 0 && posix_fallocate(other, 0, SIZE) == 0 && blocks(other) == SIZE / 512);
  CHECK(fallocate(other, 0, 0, 2 * SIZE) == 0 && blocks(other) == 2 * SIZE / 512);
  CHECK(munmap(at, SIZE) == 0 && shm_unlink(argv[1]) == 0);
  return 0;
}
