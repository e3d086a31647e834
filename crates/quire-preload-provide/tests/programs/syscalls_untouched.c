/* System calls whose buffers lie in memory that was never touched: the kernel
 * is then the first to fault there, which a user-space pager must serve or
 * prepare for.  Every call gets a page of another superpage, and buffers that
 * straddle two.  Files and pipes give known bytes, so results are checked.
 * Arguments: MiB of the region, turns. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/utsname.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static char *region;
static size_t extents, taken;

/* A buffer of up to 64 KiB in the next superpage, at a place where none was
 * before; every other one straddles two superpages. */
static void *untouched(size_t length) {
  size_t extent = taken % (extents - 1), lap = taken / (extents - 1);
  taken++;
  CHECK(length <= 64 << 10 && lap < 14);
  char *start = region + extent * EXTENT + (lap + 1) * (128 << 10);
  if (extent % 2 == 1 && lap == 0)
    start = region + (extent + 1) * EXTENT - length / 2 / 8 * 8;
  return start;
}

/* Byte i of the test file. */
static char file_byte(size_t i) { return (char)(mix(i / 64) >> (i % 8)); }

static void check_file_bytes(const char *bytes, size_t length, size_t offset) {
  for (size_t i = 0; i < length; i++)
    if (bytes[i] != file_byte(offset + i))
      FAIL("byte %zu of %zu at %p differs", i, length, (const void *)bytes);
}

#define FILE_SIZE ((size_t)1 << 20)
static char path[] = "untouched.XXXXXX";

static int make_file(void) {
  int fd = mkstemp(path);
  CHECK(fd >= 0);
  for (size_t i = 0; i < FILE_SIZE; i += 4096) {
    char block[4096];
    for (size_t k = 0; k < sizeof block; k++)
      block[k] = file_byte(i + k);
    CHECK(write(fd, block, sizeof block) == (ssize_t)sizeof block);
  }
  return fd;
}

static void files(int fd) {
  char *buffer = untouched(50000);
  CHECK(lseek(fd, 777, SEEK_SET) == 777);
  CHECK(read(fd, buffer, 50000) == 50000);
  check_file_bytes(buffer, 50000, 777);
  buffer = untouched(65536);
  CHECK(pread(fd, buffer, 65536, 4096) == 65536);
  check_file_bytes(buffer, 65536, 4096);

  struct iovec *vector = untouched(sizeof *vector * 8);
  for (unsigned i = 0; i < 8; i++)
    vector[i] = (struct iovec){untouched(9000), 9000};
  CHECK(preadv(fd, vector, 8, 100) == 72000);
  for (unsigned i = 0; i < 8; i++)
    check_file_bytes(vector[i].iov_base, 9000, 100 + i * 9000);
  for (unsigned i = 0; i < 8; i++)
    vector[i].iov_base = untouched(9000);
  CHECK(lseek(fd, 5, SEEK_SET) == 5);
  CHECK(readv(fd, vector, 8) == 72000);
  for (unsigned i = 0; i < 8; i++)
    check_file_bytes(vector[i].iov_base, 9000, 5 + i * 9000);

  struct stat *status = untouched(sizeof *status);
  CHECK(fstat(fd, status) == 0 && (size_t)status->st_size == FILE_SIZE);
  status = untouched(sizeof *status);
  CHECK(stat(path, status) == 0 && (size_t)status->st_size == FILE_SIZE);
  struct statfs *system = untouched(sizeof *system);
  CHECK(statfs(path, system) == 0 && system->f_bsize > 0);
  struct statx *extended = untouched(sizeof *extended);
  CHECK(statx(AT_FDCWD, path, 0, STATX_SIZE, extended) == 0 && extended->stx_size == FILE_SIZE);
  char *cwd = untouched(4096), *link = untouched(4096), self[4096];
  CHECK(syscall(SYS_getcwd, cwd, 4096) > 1 && cwd[0] == '/');
  ssize_t length = readlink("/proc/self/cwd", link, 4096);
  CHECK(length > 0 && memcmp(link, cwd, (size_t)length) == 0);
  CHECK(getcwd(self, sizeof self) == self && strcmp(self, cwd) == 0);
  int directory = open(".", O_RDONLY | O_DIRECTORY);
  char *entries = untouched(4096);
  CHECK(directory >= 0 && syscall(SYS_getdents64, directory, entries, 4096) > 0);
  CHECK(close(directory) == 0);

  /* A path that the kernel reads from a fresh page: it is empty. */
  CHECK_ERRNO(open(untouched(16), O_RDONLY), ENOENT);
}

/* Not every file system takes O_DIRECT; then this is one more plain read. */
static void direct(void) {
  int fd = open(path, O_RDONLY | O_DIRECT);
  if (fd < 0)
    fd = open(path, O_RDONLY);
  CHECK(fd >= 0);
  for (unsigned i = 0; i < 3; i++) {
    char *buffer = untouched(65536);
    buffer = (char *)((uintptr_t)buffer / PAGE * PAGE);
    CHECK(pread(fd, buffer, 49152, i * 4096) == 49152);
    check_file_bytes(buffer, 49152, i * 4096);
  }
  CHECK(close(fd) == 0);
}

static int zeros(const char *bytes, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (bytes[i] != 0)
      return 0;
  return 1;
}

/* What the kernel reads from untouched memory is zero. */
static void writes(void) {
  static char got[65536];
  int ends[2];
  CHECK(pipe(ends) == 0);
  memset(got, 1, sizeof got);
  CHECK(write(ends[1], untouched(40000), 40000) == 40000);
  CHECK(read(ends[0], got, 40000) == 40000 && zeros(got, 40000));
  struct iovec vector[4];
  for (unsigned i = 0; i < 4; i++)
    vector[i] = (struct iovec){untouched(5000), 5000};
  memset(got, 1, sizeof got);
  CHECK(writev(ends[1], vector, 4) == 20000);
  CHECK(read(ends[0], got, 20000) == 20000 && zeros(got, 20000));

  /* By reference: the pipe holds the very pages. */
  char *page = untouched(8192);
  page = (char *)(((uintptr_t)page + PAGE - 1) / PAGE * PAGE);
  vector[0] = (struct iovec){page, PAGE};
  memset(got, 1, sizeof got);
  CHECK(vmsplice(ends[1], vector, 1, 0) == (ssize_t)PAGE);
  CHECK(read(ends[0], got, PAGE) == (ssize_t)PAGE && zeros(got, PAGE));
  page = untouched(8192);
  page = (char *)(((uintptr_t)page + PAGE - 1) / PAGE * PAGE);
  stamp(page, 4711);
  vector[0].iov_base = page;
  CHECK(vmsplice(ends[1], vector, 1, 0) == (ssize_t)PAGE);
  FILE *file = tmpfile();
  CHECK(file != NULL);
  CHECK(splice(ends[0], NULL, fileno(file), NULL, PAGE, 0) == (ssize_t)PAGE);
  char *back = untouched(PAGE);
  CHECK(pread(fileno(file), back, PAGE, 0) == (ssize_t)PAGE);
  CHECK_STAMP(back, 4711);
  CHECK(fclose(file) == 0);
  int *pair = untouched(sizeof(int[2]));
  CHECK(pipe2(pair, O_CLOEXEC) == 0);
  CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
  CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void sockets(int fd) {
  static char sent[30000];
  int *ends = untouched(sizeof(int[2]));
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  CHECK(pread(fd, sent, sizeof sent, 0) == (ssize_t)sizeof sent);
  CHECK(send(ends[0], sent, sizeof sent, 0) == (ssize_t)sizeof sent);
  int *waiting = untouched(sizeof *waiting);
  CHECK(ioctl(ends[1], FIONREAD, waiting) == 0 && *waiting == (int)sizeof sent);
  char *buffer = untouched(10000);
  CHECK(recv(ends[1], buffer, 10000, MSG_WAITALL) == 10000);
  check_file_bytes(buffer, 10000, 0);
  struct msghdr *message = untouched(sizeof *message);
  struct iovec *vector = untouched(sizeof *vector);
  *vector = (struct iovec){untouched(20000), 20000};
  message->msg_iov = vector;
  message->msg_iovlen = 1;
  message->msg_control = untouched(256);
  message->msg_controllen = 256;
  CHECK(recvmsg(ends[1], message, MSG_WAITALL) == 20000);
  check_file_bytes(vector->iov_base, 20000, 10000);
  vector->iov_base = untouched(20000);
  message->msg_controllen = 0;
  CHECK(sendmsg(ends[0], message, 0) == 20000);
  memset(sent, 1, sizeof sent);
  CHECK(recv(ends[1], sent, 20000, MSG_WAITALL) == 20000 && zeros(sent, 20000));
  int *type = untouched(sizeof *type);
  socklen_t *length = untouched(sizeof *length);
  *length = sizeof *type;
  CHECK(getsockopt(ends[0], SOL_SOCKET, SO_TYPE, type, length) == 0 && *type == SOCK_STREAM);
  struct sockaddr_storage *name = untouched(sizeof *name);
  *length = sizeof *name;
  CHECK(getsockname(ends[0], (struct sockaddr *)name, length) == 0);
  CHECK(name->ss_family == AF_UNIX);
  CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void events(void) {
  int event = eventfd(3, 0), poller = epoll_create1(0);
  CHECK(event >= 0 && poller >= 0);
  struct epoll_event *wanted = untouched(sizeof *wanted), *got = untouched(sizeof *got);
  wanted->events = EPOLLIN;
  wanted->data.u64 = 99;
  CHECK(epoll_ctl(poller, EPOLL_CTL_ADD, event, wanted) == 0);
  CHECK(epoll_wait(poller, got, 1, 1000) == 1 && got->data.u64 == 99);
  struct pollfd *polled = untouched(sizeof *polled);
  *polled = (struct pollfd){event, POLLIN, 0};
  CHECK(poll(polled, 1, 1000) == 1 && polled->revents == POLLIN);
  uint64_t *value = untouched(sizeof *value);
  CHECK(read(event, value, sizeof *value) == 8 && *value == 3);
  CHECK(close(event) == 0 && close(poller) == 0);
}

static void process_state(void) {
  struct sigaction *old = untouched(sizeof *old), *new = untouched(sizeof *new);
  CHECK(sigaction(SIGUSR1, NULL, old) == 0 && old->sa_handler == SIG_DFL);
  CHECK(sigaction(SIGUSR1, new, NULL) == 0); /* zeros are the default action */
  sigset_t *set = untouched(sizeof *set);
  CHECK(sigprocmask(SIG_BLOCK, NULL, set) == 0 && !sigismember(set, SIGUSR1));
  struct timespec *now = untouched(sizeof *now);
  CHECK(clock_gettime(CLOCK_REALTIME, now) == 0 && now->tv_sec > 1000000000);
  now = untouched(sizeof *now);
  CHECK(syscall(SYS_clock_gettime, CLOCK_REALTIME, now) == 0 && now->tv_sec > 1000000000);
  CHECK(nanosleep(untouched(sizeof *now), NULL) == 0); /* of length zero */
  struct rlimit *limit = untouched(sizeof *limit);
  CHECK(getrlimit(RLIMIT_CORE, limit) == 0 && limit->rlim_cur <= limit->rlim_max);
  struct rusage *usage = untouched(sizeof *usage);
  CHECK(getrusage(RUSAGE_SELF, usage) == 0 && usage->ru_maxrss > 0);
  struct sysinfo *info = untouched(sizeof *info);
  CHECK(sysinfo(info) == 0 && info->totalram > 0);
  struct utsname *names = untouched(sizeof *names);
  CHECK(uname(names) == 0 && strcmp(names->sysname, "Linux") == 0);
  CHECK(times(untouched(sizeof(struct tms))) != (clock_t)-1);
  cpu_set_t *cpus = untouched(sizeof *cpus);
  CHECK(sched_getaffinity(0, sizeof *cpus, cpus) == 0 && CPU_COUNT(cpus) > 0);
  char *random = untouched(4096);
  CHECK(getrandom(random, 4096, 0) == 4096 && !zeros(random, 4096));
  int *status = untouched(sizeof *status);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0)
    _exit(31);
  CHECK(wait4(child, status, 0, untouched(sizeof *usage)) == child);
  CHECK(WIFEXITED(*status) && WEXITSTATUS(*status) == 31);
}

static void own_process(void) {
  char *from = untouched(20000), *to = untouched(20000);
  memset(from, 0x42, 20000);
  struct iovec near = {to, 20000}, far = {from, 20000};
  CHECK(process_vm_readv(getpid(), &near, 1, &far, 1, 0) == 20000);
  CHECK(memcmp(from, to, 20000) == 0);
  far.iov_base = untouched(20000); /* untouched at the far end: zeros */
  CHECK(process_vm_readv(getpid(), &near, 1, &far, 1, 0) == 20000 && zeros(to, 20000));
  near.iov_base = from;
  far.iov_base = untouched(20000);
  CHECK(process_vm_writev(getpid(), &near, 1, &far, 1, 0) == 20000);
  CHECK(memcmp(from, far.iov_base, 20000) == 0);

  /* /proc/self/mem is written and read by the kernel on our behalf. */
  const size_t large = 32 << 20, step = 2 << 20;
  char *before = mmap(NULL, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(before != MAP_FAILED);
  int memory = open("/proc/self/mem", O_RDWR);
  CHECK(memory >= 0);
  char *after = mmap(NULL, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(after != MAP_FAILED);
  for (size_t at = 0; at < large; at += step) {
    CHECK(pwrite(memory, from, 20000, (off_t)(uintptr_t)(before + at)) == 20000);
    CHECK(memcmp(from, before + at, 20000) == 0);
    CHECK(pread(memory, to, 20000, (off_t)(uintptr_t)(after + at)) == 20000 && zeros(to, 20000));
  }
  CHECK(munmap(before, large) == 0 && munmap(after, large) == 0);
  char *target = untouched(20000);
  CHECK(pwrite(memory, from, 20000, (off_t)(uintptr_t)target) == 20000);
  CHECK(memcmp(from, target, 20000) == 0);
  CHECK(pread(memory, to, 20000, (off_t)(uintptr_t)untouched(20000)) == 20000);
  CHECK(zeros(to, 20000));
  CHECK(close(memory) == 0);
}

static long futex(void *word, int operation, int value, const struct timespec *timeout) {
  return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

struct meeting {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  unsigned turn;
};

static void *answer(void *argument) {
  struct meeting *meeting = argument;
  for (unsigned i = 0; i < 200; i++) {
    CHECK(pthread_mutex_lock(&meeting->mutex) == 0);
    while (meeting->turn % 2 == 0)
      CHECK(pthread_cond_wait(&meeting->changed, &meeting->mutex) == 0);
    meeting->turn++;
    CHECK(pthread_cond_broadcast(&meeting->changed) == 0);
    CHECK(pthread_mutex_unlock(&meeting->mutex) == 0);
  }
  return NULL;
}

static void *wake_later(void *argument) {
  while (futex(argument, FUTEX_WAKE, 1, NULL) == 0)
    sleep_ms(1);
  return NULL;
}

/* Shared futexes are keyed by what lies under the address, so they must go on
 * meeting whatever is done to the page. */
static void futexes(int shared) {
  struct timespec *soon = untouched(sizeof *soon);
  soon->tv_nsec = 1000000;
  CHECK_ERRNO(futex(untouched(4), FUTEX_WAIT, 0, soon), ETIMEDOUT);
  CHECK_ERRNO(futex(untouched(4), FUTEX_WAIT_PRIVATE, 0, soon), ETIMEDOUT);
  CHECK_ERRNO(futex(untouched(4), FUTEX_WAIT, 1, soon), EAGAIN);
  CHECK(futex(untouched(4), FUTEX_WAKE, 1, NULL) == 0);
  int *word = untouched(4);
  pthread_t waker;
  CHECK(pthread_create(&waker, NULL, wake_later, word) == 0);
  CHECK(futex(word, FUTEX_WAIT, 0, NULL) == 0);
  CHECK(pthread_join(waker, NULL) == 0);

  struct meeting *meeting = untouched(sizeof *meeting);
  meeting = (struct meeting *)(((uintptr_t)meeting + 63) & ~(uintptr_t)63);
  pthread_mutexattr_t mutex;
  pthread_condattr_t changed;
  int how = shared ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE;
  CHECK(pthread_mutexattr_init(&mutex) == 0 && pthread_condattr_init(&changed) == 0);
  CHECK(pthread_mutexattr_setpshared(&mutex, how) == 0);
  CHECK(pthread_condattr_setpshared(&changed, how) == 0);
  CHECK(pthread_mutex_init(&meeting->mutex, &mutex) == 0);
  CHECK(pthread_cond_init(&meeting->changed, &changed) == 0);
  pthread_t other;
  CHECK(pthread_create(&other, NULL, answer, meeting) == 0);
  for (unsigned i = 0; i < 200; i++) {
    CHECK(pthread_mutex_lock(&meeting->mutex) == 0);
    while (meeting->turn % 2 == 1)
      CHECK(pthread_cond_wait(&meeting->changed, &meeting->mutex) == 0);
    meeting->turn++;
    CHECK(pthread_cond_broadcast(&meeting->changed) == 0);
    CHECK(pthread_mutex_unlock(&meeting->mutex) == 0);
    if (i == 100) { /* a fork in the middle: the child has its own copy */
      pid_t child = fork();
      CHECK(child >= 0);
      if (child == 0) {
        memset(meeting, 0xff, sizeof *meeting);
        _exit(0);
      }
      reap(child, 0);
    }
  }
  CHECK(pthread_join(other, NULL) == 0);
  CHECK(meeting->turn == 400);
}

static void populate(void) {
  for (unsigned turn = 0; turn < 2; turn++) {
    char *memory = map_anon(MIB(16));
    char *middle = memory + MIB(3) + 5 * PAGE;
    size_t length = MIB(8);
    int advice = turn == 0 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    CHECK(madvise(middle, length, advice) == 0);
    static unsigned char resident[MIB(8) / 4096];
    CHECK(mincore(middle, length, resident) == 0);
    for (size_t i = 0; i < length / PAGE; i++)
      CHECK(resident[i] & 1);
    check_zero_range(memory, MIB(16));
    stamp_range(memory, MIB(16), 5);
    check_range(memory, MIB(16), 5);
    CHECK(munmap(memory, MIB(16)) == 0);
  }
}

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 256));
  uint64_t turns = argument(argc, argv, 2, 8);
  extents = size / EXTENT;
  int fd = make_file();
  for (uint64_t turn = 0; turn < turns; turn++) {
    region = map_anon(size);
    region = (char *)(((uintptr_t)region + EXTENT - 1) / EXTENT * EXTENT);
    extents = size / EXTENT - 1;
    taken = turn * 11; /* so that each call meets other superpages */
    files(fd);
    direct();
    writes();
    sockets(fd);
    events();
    process_state();
    own_process();
    futexes(turn % 2 == 0);
    populate();
    CHECK(munmap(region, (extents) * EXTENT) == 0);
    printf("turn %llu ok\n", (unsigned long long)turn);
    fflush(stdout);
  }
  CHECK(unlink(path) == 0);
  return 0;
}
