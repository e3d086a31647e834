/* Reads a file without the kernel's cache (O_DIRECT) to memory of an object.
 *
 *     direct read NAME FILE   again and again, by each function, and looks whether it is there;
 *                             says "no" where there is no O_DIRECT
 *     direct take NAME FILE   meanwhile writes to the other half of each page, until it is told to end
 *     direct odd NAME FILE    much at once, to several parts, beyond the end, and what cannot be read
 *
 * With IN_C it is a program in C, which is given the address of a server instead of a name. */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#define PAGE 4096
#define PAGES 8
#define SIZE (PAGES * PAGE)
#define HALF (PAGE / 2)
#define BLOCKS 64
#define ROUNDS 200
#define RW (PROT_READ | PROT_WRITE)

/* As they are called where the compiler adds checks. */
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off_t, size_t);

#ifdef IN_C
#include <quire_dsm.h>

static unsigned char *map(const char *address, size_t size) {
  quire_dsm *server = quire_dsm_connect_apart(address, NULL);
  CHECK(server != NULL);
  CHECK(quire_dsm_create(server, "grid", size, NULL) == 0 || errno == EEXIST);
  quire_dsm_object *grid = quire_dsm_open(server, "grid", QUIRE_DSM_WRITE);
  CHECK(grid != NULL);
  return quire_dsm_address(grid);
}
#else
static unsigned char *map(const char *name, size_t size) {
  int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
  CHECK(fd >= 0 && ftruncate(fd, size) == 0);
  unsigned char *at = mmap(NULL, size, RW, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED && close(fd) == 0);
  return at;
}
#endif

/* Each half of a page begins with its number in the file. */
static unsigned char byte_at(size_t at) {
  size_t behind = at % HALF, number = at / HALF;
  return behind < 4 ? number >> 8 * behind : 1 + (at * 7 + number * 13) % 255;
}

static void make(const char *file, size_t size) {
  unsigned char *bytes = malloc(size);
  CHECK(bytes != NULL);
  for (size_t at = 0; at < size; at++)
    bytes[at] = byte_at(at);
  int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && fsync(fd) == 0 && close(fd) == 0);
  free(bytes);
}

/* Opens the file; -1 where that cannot be read so in pieces of HALF. */
static int direct(const char *file) {
  int fd = open(file, O_RDONLY | O_DIRECT);
  if (fd < 0)
    return -1;
  struct statx about;
  CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &about) == 0);
  unsigned even = about.stx_dio_offset_align;
  if ((about.stx_mask & STATX_DIOALIGN) == 0 || even == 0 || even > HALF) {
    CHECK(close(fd) == 0);
    return -1;
  }
  return fd;
}

static ssize_t read_at(int fd, void *to, size_t size, off_t at, int way) {
  struct iovec part = {to, size};
  CHECK(way >= 4 || lseek(fd, at, SEEK_SET) == at);
  ssize_t got = -1;
  switch (way) {
  case 0: got = read(fd, to, size); break;
  case 1: got = readv(fd, &part, 1); break;
  case 2: got = preadv2(fd, &part, 1, -1, 0); break;
  case 3: got = __read_chk(fd, to, size, size); break;
  case 4: got = pread(fd, to, size, at); break;
  case 5: got = preadv(fd, &part, 1, at); break;
  case 6: got = preadv2(fd, &part, 1, at, RWF_HIPRI); break;
  case 7: got = __pread_chk(fd, to, size, at, size); break;
  case 8: got = __pread64_chk(fd, to, size, at, size); break;
  }
  if (way < 4 && got >= 0)
    CHECK(lseek(fd, 0, SEEK_CUR) == at + got);
  return got;
}
#define WAYS 9

static int wrong(const unsigned char *is, size_t size, size_t at) {
  for (size_t i = 0; i < size; i++) {
    if (is[i] != byte_at(at + i))
      return 1;
  }
  return 0;
}

static void read_all(const char *name, const char *file) {
  unsigned char *memory = map(name, SIZE);
  make(file, BLOCKS * HALF);
  int fd = direct(file);
  if (fd < 0) {
    say("no");
    return;
  }
  say("reads");
  hear();
  size_t at[PAGES], lost = 0;
  for (size_t round = 0; round < ROUNDS; round++) {
    for (size_t page = 0; page < PAGES; page++) {
      at[page] = (round * 5 + page * 3) % BLOCKS * HALF;
      errno = EXDEV;
      CHECK(read_at(fd, memory + page * PAGE, HALF, at[page], (round + page) % WAYS) == HALF);
      CHECK(errno == EXDEV);
      lost += wrong(memory + page * PAGE, HALF, at[page]);
    }
    for (size_t page = 0; page < PAGES; page++)
      lost += wrong(memory + page * PAGE, HALF, at[page]);
  }
  if (lost > 0)
    fprintf(stderr, "%zu of %d are lost\n", lost, 2 * ROUNDS * PAGES);
  CHECK(lost == 0);
  say("has all");
  hear();
}

static atomic_int ends;

static void *listen_to_the_test(void *nothing) {
  hear();
  ends = 1;
  return nothing;
}

static void take(const char *name) {
  unsigned char *memory = map(name, SIZE);
  pthread_t listener;
  CHECK(pthread_create(&listener, NULL, listen_to_the_test, NULL) == 0);
  say("takes");
  for (uint64_t round = 1; !ends; round++) {
    for (size_t page = 0; page < PAGES; page++) {
      _Atomic uint64_t *word = (void *)(memory + page * PAGE + HALF + round % 8 * 8);
      uint64_t before = atomic_fetch_add(word, 1);
      CHECK(before == (round - (round % 8 == 0 ? 8 : round % 8)) / 8);
    }
  }
}

#define PART ((3 << 20) + 5 * PAGE)
#define FILE_SIZE (2 * PART + HALF)

static int shared_fd;
static atomic_int seen[FILE_SIZE / HALF];

/* Several threads that read by one position get each half of a page once, and what one call gives is
 * one piece of the file. */
static void *read_by_position(void *start) {
  unsigned char *to = start;
  for (;;) {
    ssize_t got = read(shared_fd, to, 2 << 20);
    CHECK(got >= 0);
    if (got == 0)
      return NULL;
    uint32_t first;
    memcpy(&first, to, sizeof first);
    CHECK(first < FILE_SIZE / HALF && !wrong(to, got, (size_t)first * HALF));
    for (uint32_t i = 0; i < got / HALF; i++)
      atomic_fetch_add(&seen[first + i], 1);
  }
}

static void odd(const char *name, const char *file) {
  unsigned char *memory = map(name, 2 * PART + 4 * PAGE);
  unsigned char *own = mmap(NULL, 2 * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(own != MAP_FAILED);
  make(file, FILE_SIZE);
  int fd = direct(file);
  if (fd < 0) {
    say("no");
    return;
  }
  /* Much at once, by the file's position. */
  CHECK(read(fd, memory, PART) == PART && !wrong(memory, PART, 0));
  CHECK(lseek(fd, 0, SEEK_CUR) == PART);
  /* To several parts, of which some are no object's; and more than there is. */
  memset(memory, 0, PART);
  struct iovec parts[] = {{memory + HALF, HALF}, {own, 2 * PAGE}, {memory + 2 * PAGE, 2 * PART}};
  size_t first = HALF + 2 * PAGE;
  CHECK(readv(fd, parts, 3) == PART + HALF && lseek(fd, 0, SEEK_CUR) == FILE_SIZE);
  CHECK(!wrong(memory + HALF, HALF, PART) && !wrong(own, 2 * PAGE, PART + HALF));
  CHECK(!wrong(memory + 2 * PAGE, PART + HALF - first, PART + first));
  CHECK(read(fd, memory, PAGE) == 0 && lseek(fd, 0, SEEK_CUR) == FILE_SIZE);
  CHECK(preadv(fd, parts, 3, PAGE) == FILE_SIZE - PAGE);
  CHECK(lseek(fd, 0, SEEK_CUR) == FILE_SIZE && !wrong(own, 2 * PAGE, PAGE + HALF));
  /* What cannot be read, moves nothing. */
  CHECK(lseek(fd, PAGE, SEEK_SET) == PAGE);
  FAILS(read(fd, memory + 1, PAGE) < 0, EINVAL);
  FAILS(read(fd, memory, 100) < 0, EINVAL);
  FAILS(pread(fd, memory, PAGE, 100) < 0, EINVAL);
  FAILS(pread(fd, memory, PAGE, -PAGE) < 0, EINVAL);
  CHECK(readv(fd, parts, 0) == 0 && read(fd, memory, 0) == 0);
  CHECK(mprotect(memory, PAGE, PROT_READ) == 0);
  FAILS(read(fd, memory, PAGE) < 0, EFAULT);
  CHECK(mprotect(memory, PAGE, PROT_NONE) == 0);
  FAILS(read(fd, memory, PAGE) < 0, EFAULT);
  CHECK(mprotect(memory, PAGE, RW) == 0 && lseek(fd, 0, SEEK_CUR) == PAGE);
  int closed = dup(fd);
  CHECK(closed >= 0 && close(closed) == 0);
  FAILS(read(closed, memory, PAGE) < 0, EBADF);
  FAILS(read(-1, memory, PAGE) < 0, EBADF);
  /* A pipe in packets gives one at a time. */
  int pipes[2];
  CHECK(pipe2(pipes, O_DIRECT) == 0);
  CHECK(write(pipes[1], "ab", 2) == 2 && write(pipes[1], "cd", 2) == 2);
  CHECK(read(pipes[0], memory, 2 << 20) == 2 && memory[0] == 'a' && memory[1] == 'b');
  CHECK(read(pipes[0], memory, 1) == 1 && memory[0] == 'c');
  /* Several threads by one position. */
  CHECK(lseek(fd, 0, SEEK_SET) == 0);
  shared_fd = fd;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, read_by_position, memory) == 0);
  read_by_position(memory + PART);
  CHECK(pthread_join(thread, NULL) == 0);
  for (size_t i = 0; i < FILE_SIZE / HALF; i++)
    CHECK(seen[i] == 1);
  say("has all");
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  if (strcmp(argv[1], "read") == 0)
    read_all(argv[2], argv[3]);
  else if (strcmp(argv[1], "take") == 0)
    take(argv[2]);
  else
    odd(argv[2], argv[3]);
  return 0;
}
