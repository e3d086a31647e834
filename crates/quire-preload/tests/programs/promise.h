/* What the programs share that check what the library promises: what the kernel says of a range of memory, and the
 * library's thread. Promises are checked only where the library is loaded; without it, a program does the same. */
#ifndef QUIRE_TEST_PROMISE_H
#define QUIRE_TEST_PROMISE_H

#include "common.h"
#include <dirent.h>
#include <fcntl.h>

/* The policy; empty without the library. */
static inline const char *policy(void) {
  const char *policy = getenv("QUIRE_POLICY");
  return policy != NULL ? policy : "";
}

static inline int policy_is(const char *name) { return strcmp(policy(), name) == 0; }

/* Whether there is a helper, once the process has grown. */
static inline int has_helper(void) { return policy_is("adaptive") || policy_is("eager"); }

/* Ends a program that cannot test here. */
#define CANNOT(...)                                                                                  \
  do {                                                                                               \
    printf(__VA_ARGS__);                                                                             \
    putchar('\n');                                                                                   \
    fflush(stdout);                                                                                  \
    _exit(77);                                                                                       \
  } while (0)

/* A measurement, for people. */
#define NOTE(...)                                                                                    \
  do {                                                                                               \
    fprintf(stderr, "note: " __VA_ARGS__);                                                           \
    fputc('\n', stderr);                                                                             \
  } while (0)

/* A file's beginning. By system calls: nothing is allocated. */
static inline size_t read_text(const char *path, char *text, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return text[0] = '\0', 0;
  size_t len = 0;
  ssize_t got;
  while (len + 1 < size && (got = read(fd, text + len, size - 1 - len)) > 0)
    len += (size_t)got;
  CHECK(close(fd) == 0);
  text[len] = '\0';
  return len;
}

/* Promises of superpages at the first touch are for machines where the kernel gives them to who asks. */
static inline void needs_advised_superpages(void) {
  char text[100];
  read_text("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text);
  if (strstr(text, "[madvise]") == NULL)
    CANNOT("transparent huge pages are not set to madvise");
}

/* Bytes of a range that are resident, that are on superpages, and how many mappings it is. A mapping that is larger
 * than the range counts whole. */
struct memory {
  size_t resident, huge, mappings;
  int no_huge;
};

static inline struct memory memory_of(const void *at, size_t len) {
  struct memory sum = {0, 0, 0, 0};
  FILE *file = fopen("/proc/self/smaps", "r");
  CHECK(file != NULL);
  char line[512];
  int counts = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    unsigned long start, end, kib;
    if (sscanf(line, "%lx-%lx ", &start, &end) == 2 && strchr(line, '-') < strchr(line, ' ')) {
      counts = start < (uintptr_t)at + len && end > (uintptr_t)at;
      sum.mappings += (size_t)counts;
    } else if (counts && sscanf(line, "Rss: %lu", &kib) == 1)
      sum.resident += kib << 10;
    else if (counts && sscanf(line, "AnonHugePages: %lu", &kib) == 1)
      sum.huge += kib << 10;
    else if (counts && strncmp(line, "VmFlags:", 8) == 0)
      sum.no_huge += strstr(line, " nh") != NULL;
  }
  CHECK(fclose(file) == 0);
  return sum;
}

/* Of the whole superpages of a range that lies in mappings of its own, how many are superpages, in percent. */
static inline double huge_percent(const void *at, size_t len) {
  size_t start = ((uintptr_t)at + EXTENT - 1) / EXTENT, end = ((uintptr_t)at + len) / EXTENT;
  return 100.0 * (double)memory_of(at, len).huge / (double)((end - start) * EXTENT);
}

/* Waits until so much of a range is on superpages. */
static inline double wait_for_huge(const void *at, size_t len, double percent, double patience) {
  double until = seconds() + patience, now;
  while ((now = huge_percent(at, len)) < percent && seconds() < until)
    sleep_ms(20);
  return now;
}

/* The number of the library's thread; zero where there is none. */
static inline int helper(void) {
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  int found = 0;
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    char path[300], name[50];
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    if (task->d_name[0] != '.' && read_text(path, name, sizeof name) > 0 && strcmp(name, "quire-advise\n") == 0)
      found = atoi(task->d_name);
  }
  CHECK(closedir(tasks) == 0);
  return found;
}

static inline int threads(void) {
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  int count = 0;
  for (struct dirent *task; (task = readdir(tasks)) != NULL;)
    count += task->d_name[0] != '.';
  CHECK(closedir(tasks) == 0);
  return count;
}

/* Waits until the library's thread is there, or is not. */
static inline int wait_for_helper(int wanted, double patience) {
  double until = seconds() + patience;
  while ((helper() != 0) != wanted && seconds() < until)
    sleep_ms(5);
  return (helper() != 0) == wanted;
}

/* The processor time of a thread, in seconds. */
static inline double processor_time(int thread) {
  char path[100], text[200];
  snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", thread);
  if (read_text(path, text, sizeof text) == 0)
    FAIL("thread %d is not there", thread);
  return strtod(text, NULL) * 1e-9;
}

/* Grows by so much memory, and uses it. */
static inline char *grow(size_t len) {
  char *memory = map_anon(len);
  stamp_range(memory, len, 1);
  return memory;
}

/* Grows so that the library has its thread, if it has one at all. */
static inline char *grow_up(void) {
  char *memory = grow(MIB(96));
  if (has_helper())
    CHECK(wait_for_helper(1, 5));
  return memory;
}

#endif
