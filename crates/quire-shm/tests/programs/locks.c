/* Locks files: those of objects cannot be, and all others can.
 *
 *     locks NAME FILE */
#include "common.h"

#include <sys/file.h>

#define SIZE 4096

static struct flock of_all(short type) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
  return lock;
}

static void refused(int fd) {
  struct flock lock = of_all(F_WRLCK);
  FAILS(flock(fd, LOCK_EX | LOCK_NB) < 0, ENOLCK);
  FAILS(lockf(fd, F_TLOCK, 0) < 0, ENOLCK);
  FAILS(lockf64(fd, F_LOCK, 0) < 0, ENOLCK);
  FAILS(fcntl(fd, F_SETLK, &lock) < 0, ENOLCK);
  FAILS(fcntl(fd, F_SETLKW, &lock) < 0, ENOLCK);
  FAILS(fcntl(fd, F_GETLK, &lock) < 0, ENOLCK);
  FAILS(fcntl64(fd, F_OFD_SETLK, &lock) < 0, ENOLCK);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0);
  refused(fd);
  CHECK(ftruncate(fd, SIZE) == 0);
  refused(fd);
  /* What else is asked of it goes on. */
  CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_SETFD, 0) == 0);
  CHECK(fcntl(fd, F_GETFD) == 0);
  int copy = fcntl(fd, F_DUPFD, 100);
  CHECK(copy >= 100);
  refused(copy);
  void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
  CHECK(at != MAP_FAILED && munmap(at, SIZE) == 0);

  int files[] = {open(argv[2], O_CREAT | O_RDWR, 0600), open(argv[2], O_RDWR)};
  CHECK(files[0] >= 0 && files[1] >= 0);
  CHECK(flock(files[0], LOCK_EX) == 0);
  FAILS(flock(files[1], LOCK_EX | LOCK_NB) < 0, EWOULDBLOCK);
  struct flock lock = of_all(F_WRLCK), other = of_all(F_WRLCK);
  CHECK(fcntl(files[0], F_OFD_SETLK, &lock) == 0);
  FAILS(fcntl(files[1], F_OFD_SETLK, &lock) < 0, EAGAIN);
  CHECK(fcntl(files[1], F_OFD_GETLK, &other) == 0 && other.l_type == F_WRLCK);
  lock.l_type = F_UNLCK;
  CHECK(fcntl(files[0], F_OFD_SETLK, &lock) == 0);
  CHECK(lockf(files[0], F_LOCK, 0) == 0 && lockf64(files[0], F_ULOCK, 0) == 0);
  return 0;
}
