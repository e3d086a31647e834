/* Pages that the kernel is the first to touch, from threads in parallel and for good:
 * unlike syscalls_untouched, nothing here opens /proc/self/mem.  Buffers of plain and
 * direct reads, of messages and of io_uring, futexes of all kinds, stacks of threads
 * and of signal handlers.  Arguments: rounds of each thread, threads. */
#include "common.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define ROOM MIB(8)
#define BLOCK ((size_t)64 << 10)

static char path[] = "kernel-first.XXXXXX";
static uint64_t rounds;

/* Untouched memory of one thread. */
struct room {
  char *start;
  size_t used;
};

static void *take(struct room *room, size_t length) {
  char *piece = room->start + room->used;
  room->used += (length + PAGE - 1) / PAGE * PAGE;
  CHECK(room->used <= ROOM);
  return piece;
}

/* A round needs less than an eighth. */
static void make_room(struct room *room) {
  if (room->start != NULL && room->used < ROOM / 8 * 7)
    return;
  if (room->start != NULL)
    CHECK(munmap(room->start, ROOM) == 0);
  *room = (struct room){map_anon(ROOM), 0};
}

static char file_byte(size_t at) { return (char)mix(at / 8 * 8 + at % 8); }

static void check_bytes(const char *bytes, size_t length, size_t at) {
  for (size_t i = 0; i < length; i++)
    if (bytes[i] != file_byte(at + i))
      FAIL("byte %zu of %zu at %p differs", i, length, (const void *)bytes);
}

static void make_file(void) {
  int fd = mkstemp(path);
  CHECK(fd >= 0);
  static char block[BLOCK];
  for (size_t i = 0; i < sizeof block; i++)
    block[i] = file_byte(i);
  CHECK(write(fd, block, sizeof block) == (ssize_t)sizeof block && close(fd) == 0);
}

static void reads(struct room *room, int fd) {
  char *buffer = take(room, BLOCK);
  CHECK(pread(fd, buffer, BLOCK - 100, 100) == (ssize_t)BLOCK - 100);
  check_bytes(buffer, BLOCK - 100, 100);
  struct iovec vector[4];
  for (unsigned i = 0; i < 4; i++)
    vector[i] = (struct iovec){take(room, 9000), 9000};
  CHECK(preadv(fd, vector, 4, 50) == 36000);
  for (unsigned i = 0; i < 4; i++)
    check_bytes(vector[i].iov_base, 9000, 50 + i * 9000);
  struct stat *status = take(room, sizeof *status);
  CHECK(fstat(fd, status) == 0 && status->st_size == (off_t)BLOCK);
  CHECK(getrandom(take(room, PAGE), PAGE, 0) == (ssize_t)PAGE);
}

/* The kernel holds the pages while the device writes. */
static void direct_reads(struct room *room) {
  int fd = open(path, O_RDONLY | O_DIRECT);
  if (fd < 0)
    return; /* not on every file system */
  for (size_t at = 0; at < BLOCK; at += 16384) {
    char *buffer = take(room, 16384);
    CHECK(pread(fd, buffer, 16384, (off_t)at) == 16384);
    check_bytes(buffer, 16384, at);
  }
  CHECK(close(fd) == 0);
}

static void messages(struct room *room) {
  int ends[2];
  static const char sent[20000] = {1, 2, 3};
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  CHECK(send(ends[0], sent, sizeof sent, 0) == (ssize_t)sizeof sent);
  struct msghdr *message = take(room, sizeof *message);
  struct iovec *vector = take(room, sizeof *vector);
  *vector = (struct iovec){take(room, sizeof sent), sizeof sent};
  *message = (struct msghdr){.msg_iov = vector, .msg_iovlen = 1};
  CHECK(recvmsg(ends[1], message, MSG_WAITALL) == (ssize_t)sizeof sent);
  CHECK(memcmp(vector->iov_base, sent, sizeof sent) == 0);
  CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
  /* The pipe holds the very page, and goes on to hold it when it was discarded. */
  CHECK(pipe(ends) == 0);
  char *page = take(room, PAGE), got[PAGE];
  struct iovec given = {page, PAGE};
  CHECK(vmsplice(ends[1], &given, 1, 0) == (ssize_t)PAGE);
  CHECK(madvise(page, PAGE, MADV_DONTNEED) == 0);
  stamp(page, 4);
  memset(got, 1, sizeof got);
  CHECK(read(ends[0], got, PAGE) == (ssize_t)PAGE);
  CHECK_STAMP(got, 0);
  CHECK_STAMP(page, 4);
  CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* A ring of io_uring, without a library. */
struct ring {
  int fd;
  unsigned *tail, *mask, *array, *done_head, *done_tail, *done_mask;
  struct io_uring_sqe *entries;
  struct io_uring_cqe *done;
  void *maps[3];
  size_t sizes[3];
};

static int open_ring(struct ring *ring, unsigned flags) {
  struct io_uring_params p = {.flags = flags, .sq_thread_idle = 200};
  ring->fd = (int)syscall(SYS_io_uring_setup, 8, &p);
  if (ring->fd < 0)
    return 0;
  ring->sizes[0] = p.sq_off.array + p.sq_entries * sizeof(unsigned);
  ring->sizes[1] = p.cq_off.cqes + p.cq_entries * sizeof *ring->done;
  ring->sizes[2] = p.sq_entries * sizeof *ring->entries;
  const off_t offsets[3] = {IORING_OFF_SQ_RING, IORING_OFF_CQ_RING, IORING_OFF_SQES};
  for (int i = 0; i < 3; i++) {
    ring->maps[i] = mmap(NULL, ring->sizes[i], PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, offsets[i]);
    CHECK(ring->maps[i] != MAP_FAILED);
  }
  char *submitted = ring->maps[0], *completed = ring->maps[1];
  ring->tail = (unsigned *)(submitted + p.sq_off.tail);
  ring->mask = (unsigned *)(submitted + p.sq_off.ring_mask);
  ring->array = (unsigned *)(submitted + p.sq_off.array);
  ring->done_head = (unsigned *)(completed + p.cq_off.head);
  ring->done_tail = (unsigned *)(completed + p.cq_off.tail);
  ring->done_mask = (unsigned *)(completed + p.cq_off.ring_mask);
  ring->done = (struct io_uring_cqe *)(completed + p.cq_off.cqes);
  ring->entries = ring->maps[2];
  return 1;
}

static void close_ring(struct ring *ring) {
  for (int i = 0; i < 3; i++)
    CHECK(munmap(ring->maps[i], ring->sizes[i]) == 0);
  CHECK(close(ring->fd) == 0);
}

/* Does one operation, and gives its result. */
static int perform(struct ring *ring, struct io_uring_sqe operation) {
  unsigned tail = *ring->tail, at = tail & *ring->mask;
  ring->entries[at] = operation;
  ring->array[at] = at;
  __atomic_store_n(ring->tail, tail + 1, __ATOMIC_RELEASE);
  unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP;
  while (__atomic_load_n(ring->done_tail, __ATOMIC_ACQUIRE) == *ring->done_head)
    CHECK(syscall(SYS_io_uring_enter, ring->fd, 1, 1, flags, NULL, 0) >= 0 || errno == EINTR);
  int result = ring->done[*ring->done_head & *ring->done_mask].res;
  __atomic_store_n(ring->done_head, *ring->done_head + 1, __ATOMIC_RELEASE);
  return result;
}

static void rings(struct room *room, int fd, unsigned flags) {
  struct ring ring;
  if (!open_ring(&ring, flags))
    return; /* can be forbidden */
  struct io_uring_sqe operation = {.opcode = IORING_OP_READ, .fd = fd, .len = 20000};
  char *buffer = take(room, 20000);
  operation.addr = (uintptr_t)buffer;
  CHECK(perform(&ring, operation) == 20000);
  check_bytes(buffer, 20000, 0);
  buffer = take(room, 20000);
  operation.addr = (uintptr_t)buffer;
  operation.off = 64;
  operation.flags = IOSQE_ASYNC; /* by a worker */
  CHECK(perform(&ring, operation) == 20000);
  check_bytes(buffer, 20000, 64);

  /* The kernel holds these pages from now on, also when they are read into later. */
  struct iovec held = {take(room, 32768), 32768};
  CHECK(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &held, 1) == 0);
  stamp_range(held.iov_base, 32768, 9);
  operation = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .fd = fd, .len = 10000};
  operation.addr = (uintptr_t)held.iov_base;
  CHECK(perform(&ring, operation) == 10000);
  check_bytes(held.iov_base, 10000, 0);
  CHECK_STAMP((char *)held.iov_base + 3 * PAGE, 9 + 3);
  close_ring(&ring);
}

static long futex(void *word, int operation, long value, const void *timeout, void *other, int more) {
  return syscall(SYS_futex, word, operation, value, timeout, other, more);
}

/* Each begins at zero, in a page of its own. */
static void futexes(struct room *room) {
  struct timespec *soon = take(room, sizeof *soon);
  soon->tv_nsec = 100000;
  CHECK_ERRNO(futex(take(room, 4), FUTEX_WAIT, 0, soon, NULL, 0), ETIMEDOUT);
  CHECK_ERRNO(futex(take(room, 4), FUTEX_WAIT_PRIVATE, 0, soon, NULL, 0), ETIMEDOUT);
  CHECK_ERRNO(futex(take(room, 4), FUTEX_WAIT_PRIVATE, 1, soon, NULL, 0), EAGAIN);
  CHECK(futex(take(room, 4), FUTEX_WAKE, 1, NULL, NULL, 0) == 0);
  int add = FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 0);
  int *other = take(room, 4);
  CHECK(futex(take(room, 4), FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, other, add) == 0 && *other == 5);
  other = take(room, 4);
  CHECK(futex(take(room, 4), FUTEX_WAKE_OP, 1, (void *)1, other, add) == 0 && *other == 5);
  CHECK(futex(take(room, 4), FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)1, take(room, 4), 0) == 0);
  int self = (int)syscall(SYS_gettid), *lock = take(room, 4);
  CHECK(futex(lock, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0) == 0 && *lock == self);
  CHECK(futex(lock, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0) == 0 && *lock == 0);
  lock = take(room, 4);
  CHECK(futex(lock, FUTEX_TRYLOCK_PI, 0, NULL, NULL, 0) == 0 && *lock == self);
  CHECK(futex(lock, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0) == 0);
}

static int as_clone(void *argument) {
  uint64_t deep[512];
  memset(deep, 3, sizeof deep);
  *(volatile uint64_t *)argument = deep[511];
  return 0;
}

static void *as_thread(void *argument) {
  volatile char deep[60000];
  for (size_t i = 0; i < sizeof deep; i += 512)
    deep[i] = 7;
  return deep[512] == 7 ? argument : NULL;
}

/* Stacks that nobody has touched. */
static void stacks(struct room *room) {
  size_t size = 128 << 10;
  pthread_attr_t attributes;
  pthread_t thread;
  void *answer;
  CHECK(pthread_attr_init(&attributes) == 0);
  CHECK(pthread_attr_setstack(&attributes, take(room, size), size) == 0);
  CHECK(pthread_create(&thread, &attributes, as_thread, room) == 0);
  CHECK(pthread_join(thread, &answer) == 0 && answer == room);
  volatile uint64_t *said = take(room, sizeof *said);
  char *stack = take(room, size);
  int flags = CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD;
  pid_t child = clone(as_clone, stack + size, flags, (void *)said);
  CHECK(child > 0);
  reap(child, 0);
  CHECK(*said == 0x0303030303030303);
}

static _Thread_local volatile int handled;

static void on_signal(int number) {
  volatile char deep[10000];
  for (size_t i = 0; i < sizeof deep; i += 512)
    deep[i] = (char)number;
  handled += deep[512] == number;
}

static void signals(struct room *room) {
  stack_t stack = {.ss_sp = take(room, 64 << 10), .ss_size = 64 << 10};
  CHECK(sigaltstack(&stack, NULL) == 0);
  int before = handled;
  CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
  CHECK(handled == before + 1);
  stack.ss_flags = SS_DISABLE;
  CHECK(sigaltstack(&stack, NULL) == 0);
}

static void *work(void *argument) {
  struct room room = {0};
  int fd = open(path, O_RDONLY);
  CHECK(fd >= 0);
  for (uint64_t round = 0; round < rounds; round++) {
    make_room(&room);
    reads(&room, fd);
    direct_reads(&room);
    messages(&room);
    rings(&room, fd, round % 8 == 0 ? IORING_SETUP_SQPOLL : 0);
    futexes(&room);
    stacks(&room);
    signals(&room);
  }
  CHECK(close(fd) == 0);
  return argument;
}

int main(int argc, char **argv) {
  rounds = argument(argc, argv, 1, 12);
  uint64_t count = argument(argc, argv, 2, 4);
  make_file();
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
  pthread_t threads[16];
  CHECK(count <= 16);
  for (uint64_t i = 0; i < count; i++)
    CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
  for (uint64_t i = 0; i < count; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(unlink(path) == 0);
  puts("kernel first ok");
  return 0;
}
