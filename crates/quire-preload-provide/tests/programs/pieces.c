/* A program that maps and unmaps buffers of some MiB. The library makes the
 * address space for several of them ready at once. Nothing of that may show: what
 * is mapped is zero, what is not mapped cannot be used, and any place that the
 * program names is its own. The threads of the library are not woken for it. */
#include "common.h"
#include <dirent.h>

enum { ROUNDS = 400 };
static const size_t LENGTH = MIB(8);

/* Whether the kernel can read from an address. */
static int is_readable(const char *at) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  int readable = write(ends[1], at, 1) == 1;
  CHECK(readable || errno == EFAULT);
  CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
  return readable;
}

/* How often all threads but this one have been woken. */
static long wakeups(void) {
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  long sum = 0;
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    char path[300], line[200];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
    FILE *status = task->d_name[0] == '.' || atoi(task->d_name) == getpid() ? NULL : fopen(path, "r");
    long count = 0;
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
      if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
        sum += count;
    CHECK(status == NULL || fclose(status) == 0);
  }
  CHECK(closedir(tasks) == 0);
  return sum;
}

static long woken_by_buffers(void) {
  usleep(20000);
  long before = wakeups();
  for (int i = 0; i < ROUNDS; i++)
    CHECK(munmap(map_anon(LENGTH), LENGTH) == 0);
  return wakeups() - before;
}

static void untouched_buffers_wake_nobody(void) {
  for (int i = 0; i < 10; i++)
    CHECK(munmap(map_anon(LENGTH), LENGTH) == 0);
  /* Threads wake by the clock, too: on a machine that stalls, that adds to the count, and never
   * takes from it. */
  long woken = woken_by_buffers();
  for (int again = 0; again < 3 && woken > ROUNDS / 4; again++)
    woken = woken_by_buffers();
  /* Where touches are not reported, somebody has to look at each buffer; and where
   * superpages are zeroed ahead, each buffer takes some, which are replaced. Where frames are given
   * by strategy, each is registered by the thread that has the descriptor for it, once. */
  long most = getenv("QUIRE_COLOURS") == NULL ? ROUNDS / 4 : ROUNDS + ROUNDS / 4;
  if (woken > most && geteuid() == 0 && getenv("QUIRE_AHEAD") == NULL)
    FAIL("%ld wake-ups for %d buffers", woken, (int)ROUNDS);
}

static void buffers_are_zero_and_gone_afterwards(uint64_t *random) {
  char *held[8] = {0};
  for (int i = 0; i < 64; i++) {
    size_t which = below(random, 8), length = LENGTH;
    if (held[which] != NULL) {
      check_range(held[which], PAGE, which + 1);
      CHECK(munmap(held[which], length) == 0);
      CHECK(!is_readable(held[which]) && !is_readable(held[which] + length - PAGE));
    }
    held[which] = map_anon(length);
    for (size_t at = 0; at < length; at += 37 * PAGE)
      CHECK_STAMP(held[which] + at, 0);
    stamp(held[which], which + 1);
    stamp(held[which] + length - PAGE, which + 2);
  }
  for (size_t i = 0; i < 8; i++)
    if (held[i] != NULL)
      CHECK(munmap(held[i], LENGTH) == 0);
}

/* What the library has ready, or a place where nothing is. */
static char *place_of_nobody(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[400], access[8];
  unsigned long start = 0, end = 0, found = 0;
  CHECK(maps != NULL);
  while (fgets(line, sizeof line, maps) != NULL)
    if (sscanf(line, "%lx-%lx %7s", &start, &end, access) == 3 && strcmp(access, "---s") == 0 &&
        strstr(line, "(deleted)") != NULL && end - start >= LENGTH)
      found = start;
  CHECK(fclose(maps) == 0);
  if (found != 0)
    return (char *)found;
  char *free_place = map_anon(2 * LENGTH);
  CHECK(munmap(free_place, 2 * LENGTH) == 0);
  return free_place;
}

/* Where nothing of the program's is mapped, no call finds anything, and the
 * program may map there what it likes. */
static void every_place_is_the_programs(int how) {
  char *place = place_of_nobody(), *others[10];
  CHECK(!is_readable(place));
  if (how == 0)
    CHECK_ERRNO(mprotect(place, PAGE, PROT_READ | PROT_WRITE), ENOMEM);
  if (how == 1)
    CHECK_ERRNO(madvise(place, PAGE, MADV_DONTNEED), ENOMEM);
  if (how == 2)
    CHECK(munmap(place, PAGE) == 0);
  if (how == 3)
    CHECK_ERRNO(mremap(place, PAGE, PAGE * 2, MREMAP_MAYMOVE), EFAULT);
  size_t length = how == 4 ? LENGTH - PAGE : LENGTH;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (how == 5 ? MAP_FIXED_NOREPLACE : MAP_FIXED);
  char *fixed = mmap(place, length, PROT_READ | PROT_WRITE, flags, -1, 0);
  CHECK(fixed == place);
  stamp_range(fixed, length, 7);
  for (int i = 0; i < 10; i++) {
    others[i] = map_anon(LENGTH);
    CHECK_STAMP(others[i], 0);
    stamp(others[i], 99);
  }
  check_range(fixed, length, 7);
  for (int i = 0; i < 10; i++)
    CHECK(munmap(others[i], LENGTH) == 0);
  CHECK(munmap(fixed, length) == 0);
}

static long locked_kib(void) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[200];
  long kib = -1;
  CHECK(file != NULL);
  while (fgets(line, sizeof line, file) != NULL)
    sscanf(line, "VmLck: %ld kB", &kib);
  CHECK(fclose(file) == 0);
  return kib;
}

/* What is mapped after mlockall is locked, and what is mapped after munlockall is
 * not. Without the privilege there is nothing to see. */
static void locks_hold(void) {
  char *before = map_anon(LENGTH);
  long locked = locked_kib();
  if (mlockall(MCL_FUTURE) != 0)
    return;
  char *buffer = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer != MAP_FAILED) {
    CHECK(locked_kib() - locked >= (long)(LENGTH >> 10));
    CHECK(munmap(buffer, LENGTH) == 0);
  }
  CHECK(munlockall() == 0);
  buffer = map_anon(LENGTH);
  CHECK(locked_kib() == 0);
  CHECK(munmap(buffer, LENGTH) == 0 && munmap(before, LENGTH) == 0);
}

static void forks_share_nothing(void) {
  char *buffer = map_anon(LENGTH);
  stamp_range(buffer, LENGTH, 5);
  pid_t child = fork();
  CHECK(child >= 0);
  char *fresh[6];
  for (int i = 0; i < 6; i++) {
    fresh[i] = map_anon(LENGTH);
    check_zero_range(fresh[i], 64 * PAGE);
    stamp_range(fresh[i], 64 * PAGE, child == 0 ? 1000 : 2000);
  }
  for (int i = 0; i < 6; i++)
    check_range(fresh[i], 64 * PAGE, child == 0 ? 1000 : 2000);
  check_range(buffer, LENGTH, 5);
  if (child == 0)
    _exit(0);
  reap(child, 0);
  for (int i = 0; i < 6; i++)
    CHECK(munmap(fresh[i], LENGTH) == 0);
  CHECK(munmap(buffer, LENGTH) == 0);
}

int main(int argc, char **argv) {
  uint64_t random = argument(argc, argv, 1, 1);
  for (int i = 0; i < 4; i++)
    CHECK(munmap(map_anon(LENGTH), LENGTH) == 0);
  untouched_buffers_wake_nobody();
  buffers_are_zero_and_gone_afterwards(&random);
  for (int how = 0; how < 7; how++)
    every_place_is_the_programs(how);
  locks_hold();
  forks_share_nothing();
  for (int how = 0; how < 7; how++)
    every_place_is_the_programs(how);
  untouched_buffers_wake_nobody();
  puts("pieces ok");
  return 0;
}
