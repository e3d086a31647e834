/* Resource limits: what does not fit must fail as it does for plain memory,
 * what fits must work, and the program must go on after a failure.  Limits set
 * by the program itself and limits found at its start (it runs itself again).
 * The output differs
 * only by whether the user may lock memory.  Argument: a stage, internally. */
#include "common.h"
#include <sys/resource.h>

#define RW (PROT_READ | PROT_WRITE)

static void limit(int resource, size_t bytes) {
  struct rlimit now;
  CHECK(getrlimit(resource, &now) == 0);
  now.rlim_cur = bytes < now.rlim_max ? bytes : now.rlim_max;
  CHECK(setrlimit(resource, &now) == 0);
}

static void *try_map(size_t length) {
  return mmap(NULL, length, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void use(char *memory, size_t length) {
  stamp_range(memory, length, 3);
  check_range(memory, length, 3);
}

/* What is used is never more than what is allowed, however it came about. */
static void within_limits(void) {
  struct rlimit bound;
  CHECK(getrlimit(RLIMIT_AS, &bound) == 0);
  CHECK(bound.rlim_cur == RLIM_INFINITY || status_bytes("VmSize:") <= bound.rlim_cur);
  CHECK(getrlimit(RLIMIT_DATA, &bound) == 0);
  CHECK(bound.rlim_cur == RLIM_INFINITY || status_bytes("VmData:") <= bound.rlim_cur);
}

/* Has 32 MiB to spare, not 512 MiB; asks until nothing is left. */
static void within(const char *name, int by_malloc) {
  char *fits = try_map(MIB(32));
  CHECK(fits != MAP_FAILED);
  use(fits, MIB(32));
  errno = 0;
  CHECK(try_map(MIB(512)) == MAP_FAILED && errno == ENOMEM);
  CHECK(mremap(fits, MIB(32), MIB(512), MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
  CHECK(munmap(fits, MIB(32)) == 0);
  errno = 0;
  CHECK(malloc(MIB(512)) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(calloc(512, MIB(1)) == NULL && errno == ENOMEM);

  char *pieces[64];
  unsigned count = 0;
  while (count < 64) {
    errno = 0;
    char *piece = by_malloc ? malloc(MIB(8)) : try_map(MIB(8));
    if (piece == NULL || piece == MAP_FAILED)
      break;
    memset(piece, (int)count + 1, MIB(8));
    pieces[count++] = piece;
  }
  CHECK(errno == ENOMEM);
  within_limits();
  for (unsigned i = 0; i < count; i++) {
    CHECK(pieces[i][0] == (char)(i + 1) && pieces[i][MIB(8) - 1] == (char)(i + 1));
    if (by_malloc)
      free(pieces[i]);
    else
      CHECK(munmap(pieces[i], MIB(8)) == 0);
  }
  /* Of 128 MiB; the allocator may need some for itself. */
  if (count < 6)
    FAIL("%s: only %u pieces of 8 MiB fitted into 128 MiB", name, count);
  fits = malloc(MIB(24)); /* what was given back can be had again */
  CHECK(fits != NULL);
  use((char *)(((uintptr_t)fits + PAGE - 1) / PAGE * PAGE), MIB(24) - PAGE);
  free(fits);
  printf("%s ok\n", name);
}

/* Each check in a child of its own, so that limits do not add up. */
static void in_child(void (*body)(void)) {
  fflush(stdout);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    body();
    fflush(stdout);
    _exit(0);
  }
  reap(child, 0);
}

static void address_space(void) {
  limit(RLIMIT_AS, status_bytes("VmSize:") + MIB(128));
  within("address space, by mmap", 0);
}

static void address_space_heap(void) {
  limit(RLIMIT_AS, status_bytes("VmSize:") + MIB(128));
  within("address space, by malloc", 1);
}

static void data(void) {
  limit(RLIMIT_DATA, status_bytes("VmData:") + MIB(128));
  within("data, by mmap", 0);
}

static void data_heap(void) {
  limit(RLIMIT_DATA, status_bytes("VmData:") + MIB(128));
  within("data, by malloc", 1);
}

static void no_privilege(void) {
  if (geteuid() == 0)
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
}

static void locking(void) {
  char *memory = try_map(MIB(64));
  CHECK(memory != MAP_FAILED);
  use(memory, MIB(16));
  no_privilege();
  limit(RLIMIT_MEMLOCK, MIB(4));
  CHECK(mlock(memory, MIB(2)) == 0);
  CHECK(mlock(memory, MIB(2)) == 0); /* again is not more */
  CHECK_ERRNO(mlock(memory + MIB(8), MIB(16)), ENOMEM);
  CHECK_ERRNO(mlockall(MCL_CURRENT), ENOMEM);
  CHECK_ERRNO(mmap(NULL, MIB(16), RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0), EAGAIN);
  check_range(memory, MIB(16), 3);
  CHECK(munlock(memory, MIB(2)) == 0);
  CHECK(mlock(memory + MIB(20), MIB(2)) == 0);
  check_zero_range(memory + MIB(20), MIB(2));
  limit(RLIMIT_MEMLOCK, 0);
  CHECK_ERRNO(mlock(memory, PAGE), EPERM);
  use(memory, MIB(64));
  puts("locking ok");
}

/* With the privilege, everything there is and will be is resident. */
static void lock_everything(void) {
  if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
    CHECK(errno == ENOMEM || errno == EPERM);
    puts("lock everything: refused");
    return;
  }
  char *memory = try_map(MIB(32));
  CHECK(memory != MAP_FAILED);
  static unsigned char resident[MIB(32) / 4096];
  CHECK(mincore(memory, MIB(32), resident) == 0);
  for (size_t i = 0; i < MIB(32) / PAGE; i++)
    CHECK(resident[i] & 1);
  check_zero_range(memory, MIB(32));
  use(memory, MIB(32));
  char *heap = malloc(MIB(8));
  CHECK(heap != NULL);
  memset(heap, 1, MIB(8));
  pid_t child = fork(); /* locks are not inherited, contents are */
  CHECK(child >= 0);
  if (child == 0) {
    check_range(memory, MIB(32), 3);
    stamp_range(memory, MIB(32), 8);
    _exit(0);
  }
  reap(child, 0);
  check_range(memory, MIB(32), 3);
  CHECK(munlockall() == 0);
  CHECK(munmap(memory, MIB(32)) == 0);
  free(heap);
  puts("lock everything: done");
}

/* What a limit on the size of files or on descriptors must not touch. */
static void unrelated(void) {
  limit(RLIMIT_NOFILE, 3);
  limit(RLIMIT_FSIZE, 0);
  char *memory = try_map(MIB(64));
  CHECK(memory != MAP_FAILED);
  use(memory, MIB(64));
  char *heap = malloc(MIB(20));
  CHECK(heap != NULL);
  memset(heap, 1, MIB(20));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check_range(memory, MIB(64), 3);
    stamp_range(memory, MIB(64), 4);
    _exit(0);
  }
  stamp_range(memory, MIB(64), 5);
  reap(child, 0);
  check_range(memory, MIB(64), 5);
  limit(RLIMIT_FSIZE, RLIM_INFINITY); /* the output may be a file */
  puts("unrelated limits ok");
}

static void again(const char *self, int resource, size_t bytes, const char *stage) {
  fflush(stdout);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    limit(resource, bytes);
    execl(self, self, stage, (char *)NULL);
    FAIL("execl: %s", strerror(errno));
  }
  reap(child, 0);
}

/* Runs with the limit from its first instruction. */
static void from_start(const char *name, int bounded) {
  char *memory = try_map(MIB(64));
  CHECK(memory != MAP_FAILED);
  use(memory, MIB(64));
  char *heap = malloc(MIB(32));
  CHECK(heap != NULL);
  memset(heap, 1, MIB(32));
  if (bounded) {
    CHECK_ERRNO((intptr_t)try_map(MIB(1024)), ENOMEM);
    errno = 0;
    CHECK(malloc(MIB(1024)) == NULL && errno == ENOMEM);
  }
  check_range(memory, MIB(64), 3);
  printf("from the start, %s ok\n", name);
}

int main(int argc, char **argv) {
  if (argc > 1) {
    from_start(argv[1], strcmp(argv[1], "data") == 0 || strcmp(argv[1], "address space") == 0);
    return 0;
  }
  char *memory = try_map(MIB(64)); /* so that the process is managed by now */
  CHECK(memory != MAP_FAILED);
  use(memory, MIB(32));
  in_child(address_space);
  in_child(address_space_heap);
  in_child(data);
  in_child(data_heap);
  in_child(locking);
  in_child(lock_everything);
  in_child(unrelated);
  again(argv[0], RLIMIT_AS, MIB(1024), "address space");
  again(argv[0], RLIMIT_DATA, MIB(512), "data");
  again(argv[0], RLIMIT_NOFILE, 4, "files");
  again(argv[0], RLIMIT_MEMLOCK, 0, "memory that may be locked");
  check_range(memory, MIB(32), 3);
  puts("limits ok");
  return 0;
}
