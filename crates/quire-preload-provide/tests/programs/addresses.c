/* The calls that take addresses, each on a mapping of its own of which a part is dense, a part
 * sparse and a part untouched. What each call gives and what the mapping holds afterwards, at once
 * and some time later, is printed, and must be what it is without the library.
 * Argument: when a fork comes.
 *   alone   none
 *   before  before the calls, and the child waits until all is done; it must see what was there
 *   child   the child makes the calls
 *   gone    before the calls, and the child has ended some time ago
 *   behind  after the calls; the child looks, and then the parent again */
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <linux/userfaultfd.h>
#include <fcntl.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef SHM_REMAP
#define SHM_REMAP 040000
#endif
#define PR_VMA 0x53564d41
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define LENGTH MIB(6)
#define AREA MIB(16)
#define BEFORE MIB(4)
#define PAGES (LENGTH / PAGE)
#define MOST 130

/* One call, and what it was about. */
struct trial {
  const char *name;
  char *at;         /* the mapping */
  char *moved;      /* where it has gone, if it has */
  size_t moved_len; /* how much of it */
  long result;
  int error;
  int loose; /* contents may be either the old ones or zeros */
};

static struct trial trials[MOST];
static int count;
static char *spare; /* address space that is held for what moves */
static size_t spare_used;
static int forked;

static sigjmp_buf out;
static void on_fault(int number) { siglongjmp(out, number); }

static unsigned char own(size_t page) { return (unsigned char)(page % 251 + 1); }
static int is_touched(size_t page) {
  return page < PAGES / 3 || (page < 2 * PAGES / 3 && page % 8 == 0);
}

/* What a read of a page meets: its own contents, zeros, others, or a signal. */
static char look(volatile unsigned char *at, size_t page) {
  int number = sigsetjmp(out, 1);
  if (number != 0)
    return number == SIGBUS ? 'b' : 'f';
  unsigned char first = at[0], last = at[PAGE - 1];
  if (first == 0 && last == 0)
    return 'z';
  return first == own(page) && last == own(page) ? 'o' : 'x';
}

static char try_write(volatile unsigned char *at) {
  if (sigsetjmp(out, 1) != 0)
    return 'f';
  at[PAGE / 2] = 77;
  return at[PAGE / 2] == 77 ? 'w' : '?';
}

/* What pages are, as runs; 'o' and 'z' alternate where memory is sparse, so a page that was
 * never touched and holds zeros counts as its own. */
static void show(const char *when, char *at, size_t length, int loose, int write) {
  printf("  %s:", when);
  char before = 0;
  for (size_t page = 0; page < length / PAGE; page++) {
    unsigned char *place = (unsigned char *)at + page * PAGE;
    char now = write ? try_write(place) : look(place, page);
    if (!write && now == 'z' && !is_touched(page))
      now = '.';
    if (!write && loose && now == 'z')
      now = 'o';
    if (now == 'o' && !is_touched(page))
      now = 'O';
    if (!write && now == '.' && before == 'o')
      continue;
    if (!write && now == 'o' && before == '.')
      before = 'o';
    if (now != before)
      printf(" %zu%c", page, now);
    before = now;
  }
  putchar('\n');
}

static void show_all(const char *when, int write) {
  for (int i = 0; i < count; i++) {
    struct trial *t = &trials[i];
    printf("%s = %ld errno %d\n", t->name, t->result, t->error);
    show(when, t->at, LENGTH, t->loose, write);
    if (t->moved != NULL)
      show("there", t->moved, t->moved_len, t->loose, write);
  }
}

/* A mapping between address space that nobody may use. */
static char *make(void) {
  char *area = mmap(NULL, AREA, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
  CHECK(area != MAP_FAILED);
  char *at = (char *)(((uintptr_t)area + BEFORE) / EXTENT * EXTENT);
  CHECK(mmap(at, LENGTH, RW, ANON | MAP_FIXED, -1, 0) == at);
  for (size_t page = 0; page < PAGES; page++)
    if (is_touched(page))
      at[page * PAGE] = at[page * PAGE + PAGE - 1] = (char)own(page);
  return at;
}

static char *made[MOST];
static int used;

/* The next mapping, about which a call is going to be made. */
static struct trial *next(const char *name) {
  CHECK(count < MOST && used < MOST);
  struct trial *t = &trials[count++];
  *t = (struct trial){.name = name, .at = made[used++]};
  return t;
}

static char *room(size_t length) {
  char *at = spare + spare_used;
  spare_used += (length + EXTENT) / EXTENT * EXTENT + EXTENT;
  return at;
}

#define DO(t, call)                                                            \
  do {                                                                         \
    errno = 0;                                                                 \
    long got_ = (long)(call);                                                  \
    (t)->error = got_ == -1 ? errno : 0;                                       \
    (t)->result = got_ == (long)(t)->at ? 1 : got_;                            \
  } while (0)

static void punch(char *at) { CHECK(munmap(at + MIB(3), PAGE) == 0); }

static void advice(void) {
  static char names[64][40];
  int n = 0;
  for (int number = -1; number <= 104; number++) {
    if ((number > 27 && number < 99) || number == 100 || number == 101)
      continue;
    sprintf(names[n], "madvise %d", number);
    struct trial *t = next(names[n++]);
    DO(t, madvise(t->at + MIB(1), MIB(4), number));
    t->loose = number == MADV_FREE;
  }
  int holes[] = {MADV_DONTNEED, MADV_DONTFORK, MADV_DONTDUMP, MADV_HUGEPAGE, MADV_NOHUGEPAGE, 102, 22};
  for (size_t i = 0; i < sizeof holes / sizeof *holes; i++) {
    sprintf(names[n], "madvise %d over a hole", holes[i]);
    struct trial *t = next(names[n++]);
    punch(t->at);
    DO(t, madvise(t->at, LENGTH, holes[i]));
  }
  int locked[] = {MADV_DONTNEED, MADV_FREE, MADV_REMOVE, 24, 102};
  for (size_t i = 0; i < sizeof locked / sizeof *locked; i++) {
    sprintf(names[n], "madvise %d of what is locked", locked[i]);
    struct trial *t = next(names[n++]);
    CHECK(mlock(t->at, MIB(3)) == 0);
    DO(t, madvise(t->at + MIB(1), MIB(1), locked[i]));
    CHECK(munlock(t->at, MIB(3)) == 0);
  }
  struct trial *t = next("madvise, not aligned");
  DO(t, madvise(t->at + 1, PAGE, MADV_DONTNEED));
  t = next("guards, and none any more");
  CHECK(madvise(t->at + MIB(1), MIB(2), 102) == 0 || errno == EINVAL);
  DO(t, madvise(t->at + MIB(1), MIB(1), 103));
  t = next("guards that move");
  CHECK(madvise(t->at + MIB(1), MIB(2), 102) == 0 || errno == EINVAL);
  char *to = room(LENGTH);
  DO(t, mremap(t->at, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, to));
  t->result = t->result == (long)to;
  t->moved = to;
  t->moved_len = LENGTH;
  t = next("guards under other protections");
  CHECK(madvise(t->at + MIB(1), MIB(2), 102) == 0 || errno == EINVAL);
  CHECK(mprotect(t->at, LENGTH, PROT_READ) == 0);
  DO(t, mprotect(t->at, LENGTH, RW));
  t = next("collapse of what is dense");
  DO(t, madvise(t->at, MIB(2), 25));
  t = next("collapse of what is untouched");
  DO(t, madvise(t->at + MIB(4), MIB(2), 25));
  t = next("collapse of less than an extent");
  DO(t, madvise(t->at + PAGE, MIB(1), 25));
  t = next("emptied, and used again");
  CHECK(madvise(t->at, LENGTH, MADV_DONTNEED) == 0);
  DO(t, t->at[0]);
}

static void protection(void) {
  struct trial *t = next("mprotect, read only");
  DO(t, mprotect(t->at + MIB(1), MIB(2), PROT_READ));
  t = next("mprotect, no access");
  DO(t, mprotect(t->at + MIB(1) + PAGE, PAGE, PROT_NONE));
  t = next("mprotect, executable");
  DO(t, mprotect(t->at, MIB(3), PROT_READ | PROT_EXEC));
  t = next("mprotect over a hole");
  punch(t->at);
  DO(t, mprotect(t->at + MIB(1), MIB(4), PROT_READ));
  t = next("mprotect of nonsense");
  DO(t, mprotect(t->at, PAGE, 0x100));
  t = next("mprotect, not aligned");
  DO(t, mprotect(t->at + 1, PAGE, PROT_READ));
  t = next("pkey_mprotect without a key");
  DO(t, syscall(SYS_pkey_mprotect, t->at, MIB(1), PROT_READ, -1));
  t = next("pkey_mprotect with a key");
  int key = (int)syscall(SYS_pkey_alloc, 0, 0);
  DO(t, syscall(SYS_pkey_mprotect, t->at, MIB(1), PROT_READ, key));
}

static void mapping(void) {
  struct trial *t = next("munmap");
  DO(t, munmap(t->at + MIB(1), PAGE));
  t = next("munmap, not aligned");
  DO(t, munmap(t->at + 1, PAGE));
  t = next("munmap of nothing");
  DO(t, munmap(t->at, 0));
  t = next("mmap over it");
  DO(t, mmap(t->at, MIB(4), RW, ANON | MAP_FIXED, -1, 0));
  t = next("mmap over it, read only");
  DO(t, mmap(t->at, MIB(3), PROT_READ, ANON | MAP_FIXED, -1, 0));
  t = next("mmap over it, shared");
  DO(t, mmap(t->at, MIB(3), RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0));
  t = next("mmap of no file over it");
  DO(t, mmap(t->at, MIB(3), PROT_READ, MAP_PRIVATE | MAP_FIXED, 999, 0));
  t = next("mmap where something is");
  DO(t, mmap(t->at, MIB(3), RW, ANON | MAP_FIXED_NOREPLACE, -1, 0));
  t = next("mmap with flags that nobody knows");
  DO(t, mmap(t->at, MIB(3), RW, MAP_SHARED_VALIDATE | MAP_FIXED | 0x8000000, 0, 0));
}

static void moving(void) {
  struct trial *t = next("mremap, smaller");
  DO(t, mremap(t->at, LENGTH, MIB(3), 0));
  t = next("mremap, larger where it is");
  DO(t, mremap(t->at, LENGTH, MIB(7), 0));
  t = next("mremap, larger, of a hole");
  punch(t->at);
  DO(t, mremap(t->at, LENGTH, MIB(7), MREMAP_MAYMOVE));
  t = next("mremap of a hole, the same size");
  punch(t->at);
  DO(t, mremap(t->at, LENGTH, LENGTH, 0));
  t = next("mremap, smaller, over a hole");
  punch(t->at);
  DO(t, mremap(t->at, LENGTH, MIB(1), 0));
  t = next("mremap, beginning in a hole");
  punch(t->at);
  DO(t, mremap(t->at + MIB(3), MIB(1), MIB(2), MREMAP_MAYMOVE));
  t = next("mremap, larger, of two protections");
  CHECK(mprotect(t->at + MIB(2), PAGE, PROT_READ) == 0);
  DO(t, mremap(t->at, LENGTH, MIB(7), MREMAP_MAYMOVE));
  t = next("mremap without a length");
  DO(t, mremap(t->at, 0, MIB(1), MREMAP_MAYMOVE));
  t = next("mremap to no length");
  DO(t, mremap(t->at, LENGTH, 0, MREMAP_MAYMOVE));
  t = next("mremap, not aligned");
  DO(t, mremap(t->at + 1, LENGTH, LENGTH, MREMAP_MAYMOVE));
  t = next("mremap with flags that nobody knows");
  DO(t, mremap(t->at, LENGTH, LENGTH, 64));
  t = next("mremap over itself");
  DO(t, mremap(t->at, MIB(2), MIB(2), MREMAP_MAYMOVE | MREMAP_FIXED, t->at + MIB(1)));

  struct {
    const char *name;
    size_t from, length, to;
    int flags, hole, read_only;
  } moves[] = {
      {"mremap to another place", 0, LENGTH, LENGTH, MREMAP_FIXED, 0, 0},
      {"mremap of a part to another place", MIB(1), MIB(2), MIB(2), MREMAP_FIXED, 0, 0},
      {"mremap to another place, smaller", 0, LENGTH, MIB(3), MREMAP_FIXED, 0, 0},
      {"mremap to another place, larger", 0, LENGTH, MIB(7), MREMAP_FIXED, 0, 0},
      {"mremap of a hole to another place", 0, LENGTH, LENGTH, MREMAP_FIXED, 1, 0},
      {"mremap of a hole to another place, larger", 0, LENGTH, MIB(7), MREMAP_FIXED, 1, 0},
      {"mremap of two protections to another place", 0, LENGTH, LENGTH, MREMAP_FIXED, 0, 1},
      {"mremap that leaves the old place", 0, MIB(2), MIB(2), MREMAP_DONTUNMAP | MREMAP_FIXED, 0, 0},
  };
  for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
    t = next(moves[i].name);
    if (moves[i].hole)
      punch(t->at);
    if (moves[i].read_only)
      CHECK(mprotect(t->at + MIB(2), PAGE, PROT_READ) == 0);
    char *to = room(MIB(8));
    DO(t, mremap(t->at + moves[i].from, moves[i].length, moves[i].to, MREMAP_MAYMOVE | moves[i].flags, to));
    if (t->error == 0) {
      t->result = t->result == (long)to;
      t->moved = to - moves[i].from;
      t->moved_len = moves[i].from + moves[i].to;
    }
  }
  t = next("mremap onto another one");
  char *taken = next("what was in its place")->at;
  DO(t, mremap(t->at, MIB(3), MIB(3), MREMAP_MAYMOVE | MREMAP_FIXED, taken + MIB(1)));
  t->result = t->result == (long)(taken + MIB(1));
  t = next("mremap of nothing onto another one");
  taken = next("what stays in its place")->at;
  DO(t, mremap(NULL, MIB(3), MIB(3), MREMAP_MAYMOVE | MREMAP_FIXED, taken));
}

static void telling(void) {
  unsigned char in[PAGES];
  struct trial *t = next("msync");
  DO(t, msync(t->at, LENGTH, MS_SYNC | MS_INVALIDATE));
  t = next("msync of nonsense");
  DO(t, msync(t->at, LENGTH, MS_SYNC | MS_ASYNC));
  t = next("msync over a hole");
  punch(t->at);
  DO(t, msync(t->at, LENGTH, MS_SYNC));
  t = next("mincore");
  DO(t, mincore(t->at, LENGTH, in));
  int dense = 0, untouched = 0;
  for (size_t page = 0; page < PAGES / 3; page++) {
    dense += in[page] & 1;
    untouched += in[page + PAGES / 3 * 2] & 1;
  }
  /* After a fork it also counts what lies ready behind memory that is mapped privately. */
  t->result = t->result * 10000 + dense * 1000 + (forked ? 0 : untouched);
  t = next("mincore over a hole");
  punch(t->at);
  DO(t, mincore(t->at, LENGTH, in));
  t = next("mlock over a hole");
  punch(t->at);
  DO(t, mlock(t->at, LENGTH));
  CHECK(munlock(t->at, MIB(2)) == 0);
  t = next("mlock2 with flags that nobody knows");
  DO(t, syscall(SYS_mlock2, t->at, LENGTH, 64));
  t = next("mlock2 on fault, and unlocked");
  CHECK(syscall(SYS_mlock2, t->at, LENGTH, 1) == 0);
  DO(t, syscall(SYS_munlock, t->at, LENGTH));
  t = next("mbind");
  unsigned long node = 1;
  DO(t, syscall(SYS_mbind, t->at, LENGTH, 2, &node, 8, 0));
  t = next("mbind of nonsense");
  DO(t, syscall(SYS_mbind, t->at, LENGTH, 99, &node, 8, 0));
  t = next("move_pages, asked where they are");
  CHECK(*(volatile char *)t->at != 0);
  void *pages[2] = {t->at, t->at + MIB(5)};
  int status[2] = {-1, -1};
  DO(t, syscall(SYS_move_pages, 0, 2, pages, NULL, status, 0));
  t->result = t->result * 10000 + status[0] * 1000 + status[1];
  t = next("remap_file_pages");
  DO(t, syscall(SYS_remap_file_pages, t->at, MIB(1), 0, 2, 0));
  t = next("a name");
  DO(t, prctl(PR_VMA, 0, t->at, LENGTH, "mine"));
  t = next("a name that is none");
  DO(t, prctl(PR_VMA, 0, t->at, LENGTH, "\001"));
}

static void others(void) {
  int segment = shmget(IPC_PRIVATE, MIB(2), 0600 | IPC_CREAT);
  struct trial *t = next("shmat over it");
  if (segment >= 0) {
    DO(t, shmat(segment, t->at + MIB(1), SHM_REMAP));
    t->result = t->result == (long)(t->at + MIB(1));
    t = next("shmat where something is");
    DO(t, shmat(segment, t->at, 0));
    t = next("shmat over it, rounded");
    DO(t, shmat(segment, t->at + MIB(2) + 5, SHM_REMAP | SHM_RND));
    t->result = t->result == (long)(t->at + MIB(2));
    t = next("shmat over it, and off again");
    CHECK(shmat(segment, t->at, SHM_REMAP) == t->at);
    DO(t, shmdt(t->at));
    CHECK(shmctl(segment, IPC_RMID, NULL) == 0);
  }
  t = next("shmat of no segment");
  DO(t, shmat(-1, t->at, SHM_REMAP));

  t = next("mseal");
  DO(t, syscall(SYS_mseal, t->at + MIB(1), MIB(2), 0));
  if (t->error != ENOSYS) {
    t->result += 10 * munmap(t->at, LENGTH);
    t->result += 100 * mprotect(t->at, LENGTH, PROT_READ);
    t->result += 1000 * (mremap(t->at, LENGTH, MIB(7), MREMAP_MAYMOVE) == MAP_FAILED);
    t->result += 10000 * (mmap(t->at, LENGTH, RW, ANON | MAP_FIXED, -1, 0) == MAP_FAILED);
    t->result += 100000 * madvise(t->at + MIB(1), MIB(1), MADV_DONTNEED);
  }
  t = next("mseal with flags that nobody knows");
  DO(t, syscall(SYS_mseal, t->at, PAGE, 1));

  static char buffer[3 * 4096];
  t = next("process_vm_readv of itself");
  struct iovec local = {buffer, sizeof buffer}, remote = {t->at + MIB(4) - PAGE, sizeof buffer};
  DO(t, process_vm_readv(getpid(), &local, 1, &remote, 1, 0));
  t = next("process_vm_writev of itself");
  remote.iov_base = t->at + MIB(4) - PAGE;
  memset(buffer, 9, sizeof buffer);
  DO(t, process_vm_writev(getpid(), &local, 1, &remote, 1, 0));
  t = next("process_vm_writev over a hole");
  punch(t->at);
  remote.iov_base = t->at + MIB(3) - PAGE;
  DO(t, process_vm_writev(getpid(), &local, 1, &remote, 1, 0));

  int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
  int advices[] = {MADV_DONTNEED, MADV_COLD, 102, 77};
  static char names[4][40];
  for (int i = 0; i < 4; i++) {
    sprintf(names[i], "process_madvise %d of itself", advices[i]);
    t = next(names[i]);
    struct iovec parts[2] = {{t->at, PAGE}, {t->at + MIB(3), PAGE}};
    DO(t, syscall(SYS_process_madvise, self, parts, 2, advices[i], 0));
  }
  close(self);

  t = next("userfaultfd, registered");
  int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
  if (uffd >= 0) {
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(ioctl(uffd, UFFDIO_API, &api) == 0);
    struct uffdio_register range = {
        .range = {(uintptr_t)t->at + MIB(4), MIB(2)}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    DO(t, ioctl(uffd, UFFDIO_REGISTER, &range));
    struct uffdio_copy copy = {
        .dst = (uintptr_t)t->at + MIB(4) + PAGE, .src = (uintptr_t)buffer, .len = PAGE};
    t->result = t->result * 10 + ioctl(uffd, UFFDIO_COPY, &copy);
    close(uffd);
  }
}

static void all_calls(void) {
  advice();
  protection();
  mapping();
  moving();
  telling();
  others();
}

static pid_t fork_here(void) {
  fflush(stdout);
  pid_t child = fork();
  CHECK(child >= 0);
  return child;
}

int main(int argc, char **argv) {
  const char *when = argc > 1 ? argv[1] : "alone";
  forked = strcmp(when, "alone") != 0;
  struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
  sigaction(SIGSEGV, &action, NULL);
  sigaction(SIGBUS, &action, NULL);
  setvbuf(stdout, NULL, _IOFBF, 1 << 16);
  /* The kernel takes the highest hole that is large enough: threads of the library map theirs there, and not
   * where a call has left one. */
  char *for_others = mmap(NULL, MIB(512), PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
  CHECK(for_others != MAP_FAILED);
  spare = mmap(NULL, MIB(256), PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
  CHECK(spare != MAP_FAILED);
  spare = (char *)(((uintptr_t)spare + EXTENT) / EXTENT * EXTENT);
  for (int i = 0; i < MOST; i++)
    made[i] = make();
  CHECK(munmap(for_others, MIB(512)) == 0);
  sleep_ms(300);

  int pipes[2];
  CHECK(pipe(pipes) == 0);
  pid_t child = 0;
  char byte = 0;
  if (strcmp(when, "before") == 0 && (child = fork_here()) == 0) {
    CHECK(close(pipes[1]) == 0 && read(pipes[0], &byte, 1) == 0);
    for (int i = 0; i < MOST; i++)
      for (size_t page = 0; page < PAGES; page++)
        if (look((unsigned char *)made[i] + page * PAGE, page) != (is_touched(page) ? 'o' : 'z'))
          FAIL("child: page %zu of mapping %d has changed", page, i);
    _exit(0);
  }
  if (strcmp(when, "child") == 0 && (child = fork_here()) != 0) {
    reap(child, 0);
    for (int i = 0; i < MOST; i++)
      for (size_t page = 0; page < PAGES; page++)
        if (look((unsigned char *)made[i] + page * PAGE, page) != (is_touched(page) ? 'o' : 'z'))
          FAIL("parent: page %zu of mapping %d has changed", page, i);
    return 0;
  }
  if (strcmp(when, "gone") == 0) {
    if ((child = fork_here()) == 0)
      _exit(0);
    reap(child, 0);
    child = 0;
    sleep_ms(500);
  }
  all_calls();
  show_all("at once", 0);
  if (strcmp(when, "behind") == 0) {
    if ((child = fork_here()) == 0) {
      show_all("in the child", 0);
      show_all("written by the child", 1);
      fflush(stdout);
      _exit(0);
    }
    reap(child, 0);
  }
  sleep_ms(700);
  show_all("later", 0);
  show_all("written", 1);
  fflush(stdout);
  if (strcmp(when, "before") == 0) {
    CHECK(close(pipes[1]) == 0);
    reap(child, 0);
  }
  return 0;
}
