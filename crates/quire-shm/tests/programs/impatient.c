/* A program that has no right to have the kernel's own touches answered: it reads to shared memory and
 * writes from it as ever, though none of that is there yet. Says "has the right" if it has it all the
 * same.
 *
 *     impatient NAME FILE */
#include "common.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { PAGE = 4096, PAGES = 80, SIZE = PAGE * PAGES, LENGTH = 3 * PAGE, NOBODY = 65534 };

static unsigned char *memory, pattern[LENGTH];
static int next;

/* Memory that nobody has touched. */
static unsigned char *fresh(void) {
  unsigned char *at = memory + next * PAGE + 10;
  next += LENGTH / PAGE + 1;
  CHECK(next <= PAGES);
  return at;
}

static void came(const unsigned char *at, size_t length) {
  CHECK(memcmp(at, pattern, length) == 0);
}

static void files(const char *path) {
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  CHECK(file >= 0 && write(file, pattern, LENGTH) == LENGTH);
  unsigned char *at = fresh(), there[PAGE], zeros[LENGTH] = {0}, back[LENGTH];
  CHECK(pread(file, at, LENGTH, 0) == LENGTH);
  came(at, LENGTH);
  CHECK(lseek(file, PAGE, SEEK_SET) == PAGE);
  at = fresh();
  CHECK(read(file, at, LENGTH) == LENGTH - PAGE && memcmp(at, pattern + PAGE, LENGTH - PAGE) == 0);
  CHECK(at[LENGTH - PAGE] == 0 && lseek(file, 0, SEEK_CUR) == LENGTH);
  at = fresh();
  struct iovec parts[] = {{there, PAGE}, {at, LENGTH - PAGE}};
  CHECK(preadv(file, parts, 2, 0) == LENGTH);
  came(there, PAGE);
  CHECK(memcmp(at, pattern + PAGE, LENGTH - PAGE) == 0);
  CHECK(lseek(file, 0, SEEK_SET) == 0);
  parts[1].iov_base = fresh();
  CHECK(readv(file, parts, 2) == LENGTH);
  CHECK(memcmp(parts[1].iov_base, pattern + PAGE, LENGTH - PAGE) == 0);
  /* What nobody has written is zeros. */
  CHECK(pwrite(file, fresh(), LENGTH, 0) == LENGTH && pread(file, back, LENGTH, 0) == LENGTH);
  CHECK(memcmp(back, zeros, LENGTH) == 0);
  parts[0] = (struct iovec){pattern, PAGE};
  parts[1].iov_base = fresh();
  CHECK(pwritev(file, parts, 2, 0) == LENGTH && pread(file, back, LENGTH, 0) == LENGTH);
  CHECK(memcmp(back, pattern, PAGE) == 0 && memcmp(back + PAGE, zeros, LENGTH - PAGE) == 0);
  at = fresh();
  memcpy(at, pattern, LENGTH);
  CHECK(lseek(file, 0, SEEK_SET) == 0 && write(file, at, LENGTH) == LENGTH);
  CHECK(pread(file, back, LENGTH, 0) == LENGTH);
  came(back, LENGTH);
  /* The position and errors are as ever. */
  CHECK(lseek(file, 0, SEEK_CUR) == LENGTH && read(file, fresh(), LENGTH) == 0);
  FAILS(read(-1, memory, 1) < 0, EBADF);
  FAILS(write(open(path, O_RDONLY), memory, 1) < 0, EBADF);
  CHECK(close(file) == 0);
}

static void sockets(int kind) {
  int ends[2];
  unsigned char back[LENGTH], *at = fresh();
  CHECK(socketpair(AF_UNIX, kind, 0, ends) == 0);
  CHECK(send(ends[0], pattern, LENGTH, 0) == LENGTH);
  CHECK(recv(ends[1], at, LENGTH, kind == SOCK_STREAM ? MSG_WAITALL : 0) == LENGTH);
  came(at, LENGTH);
  CHECK(sendto(ends[0], at, LENGTH, 0, NULL, 0) == LENGTH);
  CHECK(recvfrom(ends[1], back, LENGTH, kind == SOCK_STREAM ? MSG_WAITALL : 0, NULL, NULL) == LENGTH);
  came(back, LENGTH);
  /* A datagram comes whole, whatever it comes to. */
  struct iovec parts[] = {{at, PAGE}, {at + PAGE, LENGTH - PAGE}};
  CHECK(writev(ends[0], parts, 2) == LENGTH && read(ends[1], at, LENGTH) == LENGTH);
  came(at, LENGTH);
  FAILS(recv(ends[1], at, 1, MSG_DONTWAIT) < 0, EAGAIN);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  for (int i = 0; i < LENGTH; i++)
    pattern[i] = i % 251 + 1;
  int fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600), probe = open("/dev/zero", O_RDONLY);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0 && probe >= 0);
  CHECK(setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
  CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
  memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  if (syscall(SYS_read, probe, memory + SIZE - PAGE, 1) == 1) {
    say("has the right");
    return 0;
  }
  CHECK(errno == EFAULT);
  files(argv[2]);
  sockets(SOCK_STREAM);
  sockets(SOCK_DGRAM);
  CHECK(shm_unlink(argv[1]) == 0);
  say("did it all");
  return 0;
}
