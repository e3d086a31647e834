/* What else a program may do with private anonymous memory of which it has touched a
 * part: lock it, populate it, move it by lengths that are not whole pages, give
 * advice on it, merge it, bind it to a node, seal it, name it, and serve its missing
 * pages itself. */
#include "faults.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define SIZE MIB(6)

static unsigned char pages[MIB(16) / 4096];

static size_t resident(char *memory, size_t length) {
  size_t count = 0;
  CHECK(length <= MIB(16) && mincore(memory, length, pages) == 0);
  for (size_t i = 0; i < length / PAGE; i++)
    count += pages[i] & 1;
  return count;
}

/* Memory of which the third page of eight has been touched. */
static char *dotted(uint64_t tag) {
  char *memory = map_anon(SIZE);
  for (size_t page = 2; page < SIZE / PAGE; page += 8)
    stamp(memory + page * PAGE, tag + page);
  return memory;
}

static void check_dotted(const char *memory, size_t length, uint64_t tag) {
  for (size_t page = 0; page < length / PAGE; page++)
    CHECK_STAMP(memory + page * PAGE, page % 8 == 2 ? tag + page : 0);
}

static void touched(void) {
  char *memory = dotted(1);
  size_t count = resident(memory, SIZE);
  CHECK(count == SIZE / PAGE / 8);
  check_dotted(memory, SIZE, 1);
  CHECK(munmap(memory, SIZE) == 0);
  puts("touched ok");
}

static void locks(void) {
  char *memory = dotted(1);
  CHECK(mlock(memory + PAGE, SIZE / 2) == 0);
  CHECK(resident(memory + PAGE, SIZE / 2) == SIZE / 2 / PAGE);
  CHECK(status_bytes("VmLck:") == SIZE / 2);
  check_dotted(memory, SIZE, 1);
  stamp_range(memory, SIZE / 2 + PAGE, 7);
  CHECK(munlock(memory, SIZE) == 0 && status_bytes("VmLck:") == 0);
  check_range(memory, SIZE / 2 + PAGE, 7);
  CHECK(munmap(memory, SIZE) == 0);

  memory = map_anon(SIZE);
  CHECK(mlock2(memory, SIZE, MLOCK_ONFAULT) == 0 && resident(memory, SIZE) == 0);
  stamp(memory + 5 * PAGE, 3);
  check_zero_range(memory + MIB(2), MIB(1));
  stamp_range(memory + MIB(2), MIB(2), 3);
  check_range(memory + MIB(2), MIB(2), 3);
  CHECK_STAMP(memory + 5 * PAGE, 3);
  CHECK(munmap(memory, SIZE) == 0);

  memory = mmap(NULL, SIZE, RW, ANON | MAP_LOCKED, -1, 0);
  CHECK(memory != MAP_FAILED && resident(memory, SIZE) == SIZE / PAGE);
  check_zero_range(memory, SIZE);
  stamp_range(memory, SIZE, 4);
  check_range(memory, SIZE, 4);
  CHECK_ERRNO(madvise(memory, SIZE, MADV_DONTNEED), EINVAL);
  CHECK(munmap(memory, SIZE) == 0 && status_bytes("VmLck:") == 0);
  puts("locks ok");
}

/* What is there is locked, and what comes later, or only what is touched of it. */
static void lock_all(int flags, const char *name) {
  char *before = dotted(1);
  CHECK(mlockall(flags) == 0);
  char *memory = map_anon(SIZE);
  CHECK(resident(memory, SIZE) == (flags == (MCL_CURRENT | MCL_FUTURE) ? SIZE / PAGE : 0));
  check_zero_range(memory, SIZE / 2);
  stamp_range(memory, SIZE, 5);
  check_dotted(before, SIZE, 1);
  char *block = calloc(1, MIB(3));
  CHECK(block != NULL && block[MIB(2)] == 0);
  free(block);
  CHECK(munlockall() == 0 && status_bytes("VmLck:") == 0);
  check_range(memory, SIZE, 5);
  check_dotted(before, SIZE, 1);
  CHECK(munmap(memory, SIZE) == 0 && munmap(before, SIZE) == 0);
  memory = dotted(6); /* and without */
  check_dotted(memory, SIZE, 6);
  CHECK(munmap(memory, SIZE) == 0);
  printf("lock all, %s ok\n", name);
}

static void populated(void) {
  char *memory = mmap(NULL, SIZE, RW, ANON | MAP_POPULATE, -1, 0);
  CHECK(memory != MAP_FAILED && resident(memory, SIZE) == SIZE / PAGE);
  check_zero_range(memory, SIZE);
  CHECK(munmap(memory, SIZE) == 0);
  memory = mmap(NULL, SIZE, PROT_NONE, ANON | MAP_POPULATE, -1, 0);
  CHECK(memory != MAP_FAILED && resident(memory, SIZE) == 0);
  CHECK(munmap(memory, SIZE) == 0);
  memory = dotted(1);
  CHECK(madvise(memory, SIZE / 2, MADV_POPULATE_WRITE) == 0);
  CHECK(madvise(memory + SIZE / 2, SIZE / 4, MADV_POPULATE_READ) == 0);
  CHECK(resident(memory, SIZE / 4 * 3) == SIZE / 4 * 3 / PAGE);
  check_dotted(memory, SIZE, 1);
  CHECK(mprotect(memory, SIZE, PROT_READ) == 0);
  CHECK_ERRNO(madvise(memory, SIZE, MADV_POPULATE_WRITE), EINVAL);
  CHECK(munmap(memory, SIZE) == 0);
  puts("populated ok");
}

static void protection(void) {
  char *memory = dotted(1);
  CHECK(mprotect(memory, SIZE / 2, PROT_READ) == 0);
  check_dotted(memory, SIZE, 1);
  CHECK_FAULT(memory + PAGE, 1, SEGV_ACCERR);
  CHECK(mprotect(memory, SIZE, PROT_NONE) == 0);
  CHECK_FAULT(memory + 2 * PAGE, 0, SEGV_ACCERR);
  CHECK_FAULT(memory + SIZE - PAGE, 0, SEGV_ACCERR);
  CHECK(mprotect(memory, SIZE, RW | PROT_EXEC) == 0);
  check_dotted(memory, SIZE, 1);
  CHECK(madvise(memory, SIZE, MADV_DONTNEED) == 0);
  check_zero_range(memory, SIZE / 2);
  stamp_range(memory, SIZE, 2);
  CHECK(mprotect(memory, SIZE, RW) == 0);
  check_range(memory, SIZE, 2);
  int key = pkey_alloc(0, 0);
  if (key >= 0) {
    CHECK(madvise(memory, SIZE, MADV_DONTNEED) == 0);
    CHECK(pkey_mprotect(memory, SIZE, RW, key) == 0);
    check_zero_range(memory, SIZE / 2);
    stamp_range(memory, SIZE, 3);
    check_range(memory, SIZE, 3);
    CHECK(pkey_mprotect(memory, SIZE, RW, 0) == 0 && pkey_free(key) == 0);
  }
  CHECK(munmap(memory, SIZE) == 0);
  puts("protection ok");
}

/* The kernel rounds up, and what it gives is as if whole pages had been said. */
static void lengths(void) {
  char *memory = dotted(1);
  char *file = mmap(memory + MIB(1), 5000, PROT_READ, MAP_PRIVATE | MAP_FIXED, open("/proc/self/exe", O_RDONLY), 0);
  CHECK(file == memory + MIB(1) && memcmp(file, "\177ELF", 4) == 0);
  CHECK(munmap(file, 5000) == 0);
  CHECK_FAULT(file + PAGE, 0, SEGV_MAPERR);
  CHECK(mmap(file, 5000, RW, ANON | MAP_FIXED, -1, 0) == file);
  check_zero_range(file, 2 * PAGE);
  stamp_range(file, 2 * PAGE, 9);
  check_dotted(memory, MIB(1), 1);

  char *small = map_anon(3 * PAGE);
  stamp(small + PAGE, 3);
  char *large = mremap(small, 2 * PAGE + 1, MIB(3) + 1, MREMAP_MAYMOVE);
  CHECK(large != MAP_FAILED);
  CHECK_STAMP(large + PAGE, 3);
  stamp(large + MIB(3), 4);
  CHECK_STAMP(large + 2 * PAGE, 0);
  CHECK(mremap(large, MIB(3) + 1, PAGE + 1, 0) == large);
  CHECK_STAMP(large + PAGE, 3);
  CHECK_FAULT(large + 2 * PAGE, 0, SEGV_MAPERR);
  CHECK_ERRNO((intptr_t)mremap(large, 0, PAGE, MREMAP_MAYMOVE), EINVAL);
  CHECK_ERRNO(munmap(large + 1, PAGE), EINVAL);
  CHECK_STAMP(large, 0);
  char *space = map_anon(SIZE);
  stamp(space, 8);
  CHECK(mremap(large, 2 * PAGE, SIZE - PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, space + PAGE) == space + PAGE);
  CHECK_STAMP(space, 8);
  CHECK_STAMP(space + 2 * PAGE, 3);
  check_zero_range(space + 3 * PAGE, SIZE - 3 * PAGE);
  char *moved = space + PAGE;
  char *other = mremap(moved, SIZE - PAGE, SIZE - PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
  CHECK(other != MAP_FAILED && other != moved);
  check_zero_range(moved, SIZE / 2);
  stamp_range(moved, SIZE - PAGE, 20);
  CHECK_STAMP(space, 8);
  CHECK_STAMP(other + PAGE, 3);
  check_zero_range(other + 2 * PAGE, SIZE - 3 * PAGE);
  check_range(moved, SIZE - PAGE, 20);
  CHECK(munmap(space, SIZE) == 0 && munmap(other, SIZE - PAGE) == 0 && munmap(memory, SIZE) == 0);
  puts("lengths ok");
}

static void advice(void) {
  static const int harmless[] = {MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_RANDOM, MADV_SEQUENTIAL,
                                 MADV_NORMAL, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_DODUMP,
                                 MADV_MERGEABLE, MADV_UNMERGEABLE};
  char *memory = dotted(1);
  for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
    CHECK(madvise(memory, SIZE, harmless[i]) == 0 || errno == EBADF);
    check_dotted(memory, SIZE / 2, 1);
    stamp(memory + SIZE - (i * 8 + 6) * PAGE, 1 + SIZE / PAGE - (i * 8 + 6));
  }
  check_dotted(memory, SIZE, 1);
  CHECK_ERRNO(madvise(memory, SIZE, MADV_REMOVE), EINVAL);
  check_dotted(memory, SIZE, 1);
  CHECK(madvise(memory, SIZE / 2, MADV_FREE) == 0);
  stamp(memory + PAGE, 6); /* kept: it was written after the advice */
  CHECK(madvise(memory, SIZE, MADV_PAGEOUT) == 0);
  CHECK_STAMP(memory + PAGE, 6);
  CHECK(madvise(memory, SIZE, MADV_DONTNEED) == 0 && resident(memory, SIZE) == 0);
  check_zero_range(memory, SIZE / 2);
  stamp_range(memory, SIZE, 3);
  check_range(memory, SIZE, 3);
  CHECK(munmap(memory, SIZE) == 0);
  puts("advice ok");
}

/* The kernel merges pages of the same contents, also those of the whole process. */
static void merged(int all) {
  if (all && prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) != 0)
    return;
  char *memory = map_anon(SIZE);
  CHECK(all || madvise(memory, SIZE, MADV_MERGEABLE) == 0);
  for (size_t page = 0; page < SIZE / PAGE; page += 2)
    stamp(memory + page * PAGE, 4 + page % 4);
  double end = seconds() + 0.4; /* if somebody has started the kernel's thread */
  for (size_t page = 1; seconds() < end; page = (page + 2) % (SIZE / PAGE / 2)) {
    CHECK_STAMP(memory + page / 2 * 2 * PAGE, 4 + page / 2 * 2 % 4);
    stamp(memory + page / 2 * 2 * PAGE, 4 + page / 2 * 2 % 4);
    sleep_ms(1);
  }
  for (size_t page = 0; page < SIZE / PAGE; page++)
    CHECK_STAMP(memory + page * PAGE, page % 2 == 0 ? 4 + page % 4 : 0);
  stamp_range(memory, SIZE, 9);
  check_range(memory, SIZE, 9);
  CHECK(munmap(memory, SIZE) == 0);
  if (all)
    CHECK(prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0) == 0);
}

static void nodes(void) {
  char *memory = dotted(1);
  unsigned long first = 1;
  long answer = syscall(SYS_mbind, memory, SIZE, 2, &first, 64, 2); /* bind, and move */
  printf("mbind %ld\n", answer);
  check_dotted(memory, SIZE / 2, 1);
  void *asked[2] = {memory + PAGE * 2, memory + SIZE - PAGE};
  int on[2] = {0, 0}, status[2] = {-9, -9};
  answer = syscall(SYS_move_pages, 0, 2, asked, on, status, 2);
  printf("move_pages %ld: %d %d\n", answer, status[0], status[1]);
  check_dotted(memory, SIZE, 1);
  CHECK(munmap(memory, SIZE) == 0);
}

static void sealed_and_named(void) {
  char *memory = dotted(1), line[512];
  if (prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, memory, SIZE, "dotted") == 0) {
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0;
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL)
      found |= strstr(line, "[anon:dotted]") != NULL && strstr(line, "rw-p") != NULL;
    CHECK(fclose(maps) == 0 && found);
  }
  stamp(memory + 3 * PAGE, 5);
  CHECK_STAMP(memory + 4 * PAGE, 0);
  CHECK(munmap(memory, SIZE) == 0);
  memory = dotted(1);
  if (syscall(SYS_mseal, memory, SIZE, 0) == 0) {
    CHECK_ERRNO(munmap(memory, SIZE), EPERM);
    CHECK_ERRNO(mprotect(memory, SIZE, PROT_READ), EPERM);
    check_dotted(memory, SIZE, 1);
    stamp_range(memory, SIZE, 3);
    check_range(memory, SIZE, 3);
  }
  puts("sealed and named ok");
}

static char *served;
static int server;

/* Gives each missing page the stamp of its number. */
static void *serve(void *nothing) {
  static char page[4096] __attribute__((aligned(4096)));
  struct uffd_msg message;
  while (read(server, &message, sizeof message) == (ssize_t)sizeof message) {
    CHECK(message.event == UFFD_EVENT_PAGEFAULT);
    size_t at = (message.arg.pagefault.address - (uintptr_t)served) / PAGE;
    if (at >= SIZE / PAGE)
      break;
    memset(page, 0, sizeof page);
    stamp(page, 100 + at);
    struct uffdio_copy copy = {(uintptr_t)served + at * PAGE, (uintptr_t)page, PAGE, 0, 0};
    CHECK(ioctl(server, UFFDIO_COPY, &copy) == 0);
    if (at == SIZE / PAGE - 1)
      break;
  }
  return nothing;
}

/* A program that has missing pages of its own memory reported to itself. */
static void own_faults(void) {
  char *before = dotted(1);
  server = (int)syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* faults in user mode */);
  if (server < 0) {
    puts("own faults refused");
    return;
  }
  struct uffdio_api api = {.api = UFFD_API};
  CHECK(ioctl(server, UFFDIO_API, &api) == 0);
  served = dotted(100);
  struct uffdio_register wanted = {{(uintptr_t)served, SIZE}, UFFDIO_REGISTER_MODE_MISSING, 0};
  CHECK(ioctl(server, UFFDIO_REGISTER, &wanted) == 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, serve, NULL) == 0);
  for (size_t i = 0; i < SIZE / PAGE; i++)
    CHECK_STAMP(served + i * PAGE, 100 + i);
  CHECK(pthread_join(thread, NULL) == 0 && close(server) == 0);
  check_dotted(before, SIZE, 1);
  char *after = dotted(2);
  check_dotted(after, SIZE, 2);
  CHECK(munmap(before, SIZE) == 0 && munmap(served, SIZE) == 0 && munmap(after, SIZE) == 0);
  puts("own faults ok");
}

int main(void) {
  catch_faults();
  touched();
  protection();
  lengths();
  advice();
  populated();
  locks();
  lock_all(MCL_CURRENT, "current");
  lock_all(MCL_CURRENT | MCL_FUTURE, "current and future");
  lock_all(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT, "on fault");
  merged(0);
  merged(1);
  nodes();
  sealed_and_named();
  own_faults();
  return 0;
}
