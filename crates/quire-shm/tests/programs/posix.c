/* Shared memory of POSIX, as any program uses it.
 *
 *     posix make NAME     makes it, writes, waits, and reads what the other wrote
 *     posix use NAME      finds it, reads, and writes
 *     posix watch NAME    makes it, writes, and reads that again and again
 *     posix odd NAME      maps it in odd ways, and tries what is not offered
 *     posix end NAME HOW  writes and ends without unmapping: by exit, _exit,
 *                     return, quick (quick_exit), handler (_exit in a signal handler),
 *                     or as a daemon
 *     posix other NAME    a name that is nobody's object */
#include "common.h"

#include <signal.h>
#include <sys/syscall.h>

#define PAGE 4096
#define SIZE (9 * PAGE + 100)

static unsigned char *map(int fd, size_t size) {
  unsigned char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

static int make(const char *name) {
  struct stat about;
  int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(fd >= 0);
  CHECK(fstat(fd, &about) == 0 && about.st_size == 0);
  CHECK(ftruncate(fd, SIZE) == 0);
  CHECK(fstat(fd, &about) == 0 && about.st_size == SIZE);
  FAILS(shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600) < 0, EEXIST);
  unsigned char *at = map(fd, SIZE);
  CHECK(close(fd) == 0);
  for (int i = 0; i < SIZE; i++) {
    CHECK(at[i] == 0);
    at[i] = i % 251;
  }
  say("made");
  hear();
  for (int i = 0; i < SIZE; i++)
    CHECK(at[i] == 255 - i % 251);
  CHECK(munmap(at, SIZE) == 0);
  CHECK(shm_unlink(name) == 0);
  FAILS(shm_unlink(name) < 0, ENOENT);
  FAILS(shm_open(name, O_RDWR, 0600) < 0, ENOENT);
  return 0;
}

static int watch(const char *name) {
  int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  volatile unsigned char *at = map(fd, SIZE);
  at[1] = 7;
  say("made");
  for (;;) {
    CHECK(at[1] == 7);
    usleep(1000);
  }
}

static int use(const char *name) {
  struct stat about;
  int fd = shm_open(name, O_RDWR, 0600);
  CHECK(fd >= 0);
  CHECK(fstat(fd, &about) == 0 && about.st_size == SIZE);
  unsigned char *at = map(fd, about.st_size);
  for (int i = 0; i < SIZE; i++) {
    CHECK(at[i] == i % 251);
    at[i] = 255 - i % 251;
  }
  CHECK(munmap(at, SIZE) == 0);
  return 0;
}

static int odd(const char *name) {
  int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0);
  CHECK(ftruncate(fd, SIZE) == 0);
  CHECK(ftruncate(fd, SIZE) == 0);
  FAILS(ftruncate(fd, 2 * SIZE) < 0, EINVAL);

  /* Several mappings are one memory. */
  unsigned char *whole = map(fd, SIZE);
  int copy = dup(fd);
  CHECK(close(fd) == 0);
  unsigned char *area = mmap(NULL, 6 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  unsigned char *part = mmap(area + PAGE, 3 * PAGE, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_FIXED, copy, 2 * PAGE);
  CHECK(part == area + PAGE);
  whole[2 * PAGE + 5] = 42;
  CHECK(part[5] == 42);
  part[PAGE] = 43;
  CHECK(whole[3 * PAGE] == 43);

  /* A hole in the middle of a mapping. */
  CHECK(munmap(part + PAGE, PAGE) == 0);
  CHECK(part[5] == 42);
  part[2 * PAGE] = 44;
  CHECK(whole[4 * PAGE] == 44 && whole[3 * PAGE] == 43);
  int pipes[2];
  CHECK(pipe(pipes) == 0);
  FAILS(write(pipes[1], part + PAGE, 1) < 0, EFAULT);
  CHECK(munmap(part + PAGE, PAGE) == 0);
  FAILS(mmap(part + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED, EINVAL);
  FAILS(mmap(part + PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, copy, 0) == MAP_FAILED, EINVAL);
  CHECK(part[2 * PAGE] == 44);
  /* A system call waits for what is not there. */
  CHECK(write(pipes[1], whole + 8 * PAGE, 10) == 10);
  CHECK(read(pipes[0], whole + 7 * PAGE, 10) == 10);

  /* Protection. */
  CHECK(mprotect(part, PAGE, PROT_READ) == 0);
  CHECK(write(pipes[1], "x", 1) == 1);
  FAILS(read(pipes[0], part, 1) < 0, EFAULT);
  CHECK(mprotect(part, PAGE, PROT_READ | PROT_WRITE) == 0);
  part[6] = 45;
  CHECK(whole[2 * PAGE + 6] == 45);
  CHECK(madvise(whole, SIZE, MADV_DONTNEED) == 0);
  CHECK(whole[2 * PAGE + 6] == 45 && part[5] == 42);
  CHECK(msync(whole, SIZE, MS_SYNC) == 0);
  CHECK(whole[2 * PAGE + 6] == 45 && part[5] == 42);
  whole[2 * PAGE + 6] = 46;

  /* Something else takes the place of all of a mapping; what is around it is unmapped, too. */
  CHECK(mmap(part, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
             -1, 0) == part);
  part[5] = 1;
  CHECK(whole[2 * PAGE + 5] == 42);
  CHECK(mmap(part, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, copy, 2 * PAGE) == part);
  CHECK(part[6] == 46 && part[PAGE] == 0);
  CHECK(munmap(area, 6 * PAGE) == 0);
  FAILS(write(pipes[1], part, 1) < 0, EFAULT);

  /* What is not offered. */
  char byte = 0;
  int rw = PROT_READ | PROT_WRITE;
  FAILS(mmap(NULL, SIZE, rw, MAP_PRIVATE, copy, 0) == MAP_FAILED, ENOTSUP);
  FAILS(mmap(NULL, SIZE + PAGE, rw, MAP_SHARED, copy, 0) == MAP_FAILED, ENXIO);
  FAILS(mmap(NULL, PAGE, rw, MAP_SHARED, copy, 100) == MAP_FAILED, EINVAL);
  FAILS(mmap(NULL, PAGE, rw | PROT_EXEC, MAP_SHARED, copy, 0) == MAP_FAILED, EACCES);
  FAILS(mmap(whole, PAGE, rw, MAP_SHARED | MAP_FIXED_NOREPLACE, copy, 0) == MAP_FAILED, EEXIST);
  FAILS(mmap(whole, PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED,
        EINVAL);
  FAILS(mremap(whole, SIZE, 2 * SIZE, MREMAP_MAYMOVE) == MAP_FAILED, EINVAL);
  FAILS(mprotect(whole, PAGE, rw | PROT_EXEC) < 0, EACCES);
  FAILS(madvise(whole, SIZE, MADV_REMOVE) < 0, EINVAL);
  CHECK(pread(copy, &byte, 1, 0) == 1 && pwrite(copy, &byte, 1, 0) == 1);
  FAILS(syscall(SYS_mmap, NULL, SIZE, rw, MAP_SHARED, copy, 0) == -1, EACCES);
  FAILS(syscall(SYS_mmap, NULL, SIZE, PROT_READ, MAP_PRIVATE, copy, 0) == -1, EACCES);

  /* Opened to be read. */
  int to_read = shm_open(name, O_RDONLY, 0);
  CHECK(to_read >= 0);
  FAILS(mmap(NULL, SIZE, rw, MAP_SHARED, to_read, 0) == MAP_FAILED, EACCES);
  FAILS(ftruncate(to_read, SIZE) < 0, EINVAL);
  unsigned char *read_only = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, to_read, 0);
  CHECK(read_only != MAP_FAILED && read_only[2 * PAGE + 5] == 42);
  FAILS(mprotect(read_only, PAGE, rw) < 0, EACCES);
  FAILS(pkey_mprotect(read_only, PAGE, rw, -1) < 0, EACCES);

  /* Closing all descriptors closes nothing that the memory needs. */
  for (int other = 3; other < 100; other++)
    close(other);
  whole[5 * PAGE] = 47;
  CHECK(read_only[5 * PAGE] == 47);
  CHECK(munmap(read_only, SIZE) == 0 && munmap(whole, SIZE) == 0);

  /* Once more, from nothing; at an address of the program's choice. */
  fd = shm_open(name, O_RDWR, 0);
  CHECK(fd == 3);
  unsigned char *again = mmap((void *)0x510000000000, SIZE, rw, MAP_SHARED, fd, 0);
  CHECK(again == (void *)0x510000000000);

  /* What it says that it will need is brought without a touch. */
  unsigned char here[4];
  CHECK(mincore(again, 4 * PAGE, here) == 0);
  CHECK(((here[0] | here[1] | here[2] | here[3]) & 1) == 0);
  CHECK(madvise(again, 4 * PAGE, MADV_WILLNEED) == 0);
  for (int looks = 0; (here[0] & here[1] & here[2] & here[3] & 1) == 0; looks++) {
    CHECK(looks < 10000 && usleep(1000) == 0);
    CHECK(mincore(again, 4 * PAGE, here) == 0);
  }
  CHECK(madvise(again + 4 * PAGE, 4 * PAGE, MADV_POPULATE_WRITE) == 0);
  CHECK(again[5 * PAGE] == 47);

  /* Emptied: only when nobody uses it. */
  FAILS(shm_open(name, O_CREAT | O_TRUNC | O_RDWR, 0600) < 0, EBUSY);
  CHECK(munmap(again, SIZE) == 0);
  fd = shm_open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
  FAILS(mmap(NULL, PAGE, rw, MAP_SHARED, fd, 0) == MAP_FAILED, ENXIO);
  CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0);
  again = map(fd, PAGE);
  CHECK(again[0] == 0);
  /* The descriptor that was there before is of the same memory. */
  unsigned char *same = map(3, PAGE);
  again[1] = 48;
  CHECK(fd != 3 && same[1] == 48 && munmap(same, PAGE) == 0);

  /* Removed while it is used: it goes when the program ends, and its child. */
  CHECK(shm_unlink(name) == 0);
  again[0] = 1;
  pid_t pid = fork();
  CHECK(pid >= 0 && again[0] == 1);
  if (pid > 0) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  }
  return 0;
}

static void give_up(int signal) {
  (void)signal;
  _exit(0);
}

/* Ends in a signal handler, most likely in the middle of malloc. */
static void end_in_handler(void) {
  signal(SIGALRM, give_up);
  ualarm(50000, 0);
  for (;;) {
    void *pieces[64];
    for (int i = 0; i < 64; i++)
      pieces[i] = malloc(100000 + i);
    for (int i = 0; i < 64; i++)
      free(pieces[i]);
  }
}

/* Ends the process, if it is to end otherwise than by returning. */
static void leave(const char *how) {
  if (strcmp(how, "exit") == 0)
    exit(0);
  if (strcmp(how, "_exit") == 0)
    _exit(0);
  if (strcmp(how, "quick") == 0)
    quick_exit(0);
  if (strcmp(how, "handler") == 0)
    end_in_handler();
}

/* Ends with a page that others want. */
static int see(const char *name, const char *how) {
  int fd = shm_open(name, O_RDWR, 0600);
  CHECK(fd >= 0);
  unsigned char *at = map(fd, SIZE);
  CHECK(at[0] != 0);
  leave(how);
  return 0;
}

static int end(const char *name, const char *how) {
  int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  unsigned char *at = map(fd, SIZE);
  at[0] = at[SIZE - 1] = how[0];
  leave(how);
  if (strcmp(how, "daemon") == 0) {
    CHECK(daemon(1, 1) == 0);
    /* Only the daemon goes on. */
    CHECK(at[0] == how[0] && at[SIZE - 1] == how[0]);
    at[1] = 'D';
  }
  return 0;
}

static int other(const char *name) {
  char path[128];
  snprintf(path, sizeof path, "/dev/shm%s", name);
  int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(fd >= 0 && access(path, F_OK) == 0);
  CHECK(ftruncate(fd, SIZE) == 0);
  unsigned char *at = map(fd, SIZE);
  at[1] = 7;
  unsigned char byte = 0;
  CHECK(pread(fd, &byte, 1, 1) == 1 && byte == 7);
  CHECK(munmap(at, SIZE) == 0 && shm_unlink(name) == 0 && access(path, F_OK) != 0);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  const char *what = argv[1], *name = argv[2];
  if (strcmp(what, "make") == 0)
    return make(name);
  if (strcmp(what, "watch") == 0)
    return watch(name);
  if (strcmp(what, "use") == 0)
    return use(name);
  if (strcmp(what, "odd") == 0)
    return odd(name);
  if (strcmp(what, "see") == 0)
    return see(name, argv[3]);
  if (strcmp(what, "end") == 0)
    return end(name, argv[3]);
  return other(name);
}
