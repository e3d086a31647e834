/* Shared memory and mapped files: what is promoted must go on behaving as the
 * kernel's own.  Everything is filled first; then the program waits, so that
 * superpages can be made; then it changes what lies under them.
 *
 * With the argument `hold` it waits for the end of its input instead of a
 * second, so that a test can look at it from outside. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/shm.h>
#include <sys/stat.h>

#define SIZE MIB(8)

static sigjmp_buf back;
static volatile sig_atomic_t got;

static void on_fault(int number) {
  got = number;
  siglongjmp(back, 1);
}

/* The signal that reading (or writing) at `at` raises; zero for none. */
static int fault_at(volatile char *at, int writing) {
  got = 0;
  if (sigsetjmp(back, 1) == 0) {
    char byte = *at;
    if (writing)
      *at = byte;
  }
  return got;
}

static char *map_shared(int fd, size_t size, int prot) {
  int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  char *memory = mmap(NULL, size, prot, flags, fd, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

static int new_memfd(const char *name, size_t size) {
  int fd = memfd_create(name, MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
  return fd;
}

static int new_file(const char *name, uint64_t tag) {
  int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
  CHECK(fd >= 0);
  static char page[4096];
  for (size_t i = 0; i < SIZE / PAGE; i++) {
    stamp(page, tag + i);
    CHECK(write(fd, page, PAGE) == (ssize_t)PAGE);
  }
  CHECK(fsync(fd) == 0);
  return fd;
}

static long blocks_of(int fd) {
  struct stat about;
  CHECK(fstat(fd, &about) == 0);
  return (long)about.st_blocks;
}

/* A thread whose stack is deep, and which goes on using it. */
static volatile int stack_is_full, may_end;

static void *deep_thread(void *unused) {
  (void)unused;
  char frame[MIB(6)];
  char *first = (char *)(((uintptr_t)frame + PAGE - 1) & ~(PAGE - 1));
  stamp_range(first, MIB(5), 900000);
  stack_is_full = 1;
  while (!may_end)
    sleep_ms(5);
  check_range(first, MIB(5), 900000);
  return NULL;
}

static void anonymous(char *memory) {
  check_range(memory, SIZE, 100000);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check_range(memory, SIZE, 100000);
    stamp_range(memory, MIB(3), 110000);
    _exit(7);
  }
  reap(child, 7);
  check_range(memory, MIB(3), 110000);
  CHECK(mprotect(memory + MIB(1), PAGE, PROT_READ) == 0);
  printf("anonymous: write to a protected page: signal %d\n", fault_at(memory + MIB(1), 1));
  char *moved = mremap(memory, SIZE, SIZE, MREMAP_MAYMOVE);
  CHECK(moved == memory);
  CHECK(madvise(memory + MIB(2), MIB(2), MADV_DONTNEED) == 0);
  check_range(memory, MIB(3), 110000);
  CHECK(madvise(memory + MIB(4) + PAGE, MIB(1), MADV_REMOVE) == 0);
  check_zero_range(memory + MIB(4) + PAGE, MIB(1));
  CHECK(munmap(memory + MIB(6), MIB(2)) == 0);
  printf("anonymous: beyond the rest: signal %d\n", fault_at(memory + MIB(6), 0));
}

static void sealed(int fd, char *memory) {
  printf("memfd: %ld blocks\n", blocks_of(fd));
  CHECK_ERRNO(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY);
  CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
  stamp_range(memory, MIB(1), 210000);
  static char page[4096];
  CHECK_ERRNO(pwrite(fd, page, PAGE, 0), EPERM);
  CHECK(ftruncate(fd, (off_t)(MIB(5) + PAGE)) == 0);
  check_range(memory, MIB(1), 210000);
  printf("memfd: last page: signal %d, page behind it: signal %d\n",
         fault_at(memory + MIB(5), 0), fault_at(memory + MIB(5) + PAGE, 0));
  CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  CHECK_ERRNO(ftruncate(fd, PAGE), EPERM);
  check_range(memory + MIB(1), MIB(4), 200000 + MIB(1) / PAGE);
  printf("memfd: %ld blocks after the cut\n", blocks_of(fd));
}

static void punched(int fd, char *memory) {
  int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  CHECK(fallocate(fd, how, (off_t)MIB(2), (off_t)MIB(3)) == 0);
  check_range(memory, MIB(2), 300000);
  check_zero_range(memory + MIB(2), MIB(3));
  printf("hole at %ld, data at %ld\n", (long)lseek(fd, 0, SEEK_HOLE),
         (long)lseek(fd, (off_t)MIB(2), SEEK_DATA));
  sleep_ms(300);
  printf("holes stay: %ld blocks\n", blocks_of(fd));
}

static void file(int fd, char *memory) {
  check_range(memory, SIZE, 400000);
  static char page[4096];
  stamp(page, 77);
  CHECK(pwrite(fd, page, PAGE, (off_t)MIB(3)) == (ssize_t)PAGE);
  CHECK_STAMP(memory + MIB(3), 77);
  CHECK(unlink("quire-shared-file") == 0);
  check_range(memory + MIB(4), MIB(4), 400000 + MIB(4) / PAGE);
  CHECK(ftruncate(fd, (off_t)MIB(5)) == 0);
  printf("file: behind the end: signal %d\n", fault_at(memory + MIB(5), 0));
  CHECK(ftruncate(fd, (off_t)SIZE) == 0);
  check_zero_range(memory + MIB(5), MIB(3));
  CHECK_ERRNO(mprotect(memory, PAGE, PROT_WRITE), EACCES);
}

static void written_file(int fd, char *memory) {
  stamp_range(memory, MIB(3), 510000);
  CHECK(msync(memory, SIZE, MS_SYNC) == 0);
  static char page[4096];
  CHECK(pread(fd, page, PAGE, (off_t)MIB(2)) == (ssize_t)PAGE);
  CHECK_STAMP(page, 510000 + MIB(2) / PAGE);
  check_range(memory + MIB(3), SIZE - MIB(3), 500000 + MIB(3) / PAGE);
}

/* Private memory of a file: what is written stays here. */
static void private_file(int fd, char *memory) {
  check_range(memory, SIZE, 600000);
  CHECK(mprotect(memory + MIB(2), MIB(2), PROT_READ | PROT_WRITE) == 0);
  stamp_range(memory + MIB(2), MIB(1), 610000);
  sleep_ms(700);
  check_range(memory + MIB(2), MIB(1), 610000);
  check_range(memory + MIB(3), MIB(5), 600000 + MIB(3) / PAGE);
  static char page[4096];
  CHECK(pread(fd, page, PAGE, (off_t)MIB(2)) == (ssize_t)PAGE);
  CHECK_STAMP(page, 600000 + MIB(2) / PAGE);
}

int main(int argc, char **argv) {
  int hold = argc > 1 && strcmp(argv[1], "hold") == 0;
  struct sigaction action = {.sa_handler = on_fault};
  CHECK(sigaction(SIGBUS, &action, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
  /* A process is managed once it has asked for some memory.  Some programs
   * do that with signals blocked that they handle: PostgreSQL does. */
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGBUS);
  if (hold)
    CHECK(sigprocmask(SIG_BLOCK, &blocked, &before) == 0);
  char *first = map_anon(MIB(32));
  CHECK(munmap(first, MIB(32)) == 0);

  char *anon = map_shared(-1, SIZE, PROT_READ | PROT_WRITE);
  stamp_range(anon, SIZE, 100000);
  int memfd = new_memfd("sealed", SIZE);
  char *memory = map_shared(memfd, SIZE, PROT_READ | PROT_WRITE);
  stamp_range(memory, SIZE, 200000);
  int holes = new_memfd("holes", SIZE);
  char *with_holes = map_shared(holes, SIZE, PROT_READ | PROT_WRITE);
  stamp_range(with_holes, SIZE, 300000);
  int plain = new_memfd("plain", SIZE);
  char *plain_memory = map_shared(plain, SIZE, PROT_READ | PROT_WRITE);
  CHECK(madvise(plain_memory, SIZE, MADV_NOHUGEPAGE) == 0);
  stamp_range(plain_memory, SIZE, 800000);

  int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
  CHECK(id >= 0);
  char *segment = shmat(id, NULL, 0);
  CHECK(segment != (char *)-1);
  stamp_range(segment, SIZE, 700000);
  CHECK(shmctl(id, IPC_RMID, NULL) == 0);
  CHECK_ERRNO(shmat(-1, NULL, 0), EINVAL);

  char name[64];
  snprintf(name, sizeof name, "/quire-shared.%d", (int)getpid());
  int posix = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK(posix >= 0 && ftruncate(posix, SIZE) == 0);
  char *posix_memory = map_shared(posix, SIZE, PROT_READ | PROT_WRITE);
  stamp_range(posix_memory, SIZE, 750000);
  CHECK(shm_unlink(name) == 0);

  int fd = new_file("quire-shared-file", 400000);
  char *of_file = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
  CHECK(of_file != MAP_FAILED);
  CHECK(munmap(of_file, SIZE) == 0);
  int reader = open("quire-shared-file", O_RDONLY);
  of_file = map_shared(reader, SIZE, PROT_READ);
  check_range(of_file, SIZE, 400000);
  int written = new_file("quire-shared-written", 500000);
  char *of_written = map_shared(written, SIZE, PROT_READ | PROT_WRITE);
  check_range(of_written, SIZE, 500000);
  int private = new_file("quire-shared-private", 600000);
  char *of_private = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, private, 0);
  CHECK(of_private != MAP_FAILED);
  check_range(of_private, SIZE, 600000);

  if (hold)
    CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0);

  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, deep_thread, NULL) == 0);
  while (!stack_is_full)
    sleep_ms(1);
  if (hold) {
    puts("ready");
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 0);
  } else {
    sleep_ms(2500);
  }
  may_end = 1;
  CHECK(pthread_join(thread, NULL) == 0);

  anonymous(anon);
  sealed(memfd, memory);
  punched(holes, with_holes);
  check_range(plain_memory, SIZE, 800000);
  check_range(segment, SIZE, 700000);
  CHECK(shmdt(segment) == 0);
  printf("segment: after shmdt: signal %d\n", fault_at(segment, 0));
  check_range(posix_memory, SIZE, 750000);
  CHECK(munmap(posix_memory, SIZE) == 0);
  file(fd, of_file);
  written_file(written, of_written);
  private_file(private, of_private);
  CHECK(unlink("quire-shared-written") == 0 && unlink("quire-shared-private") == 0);
  puts("done");
  return 0;
}
