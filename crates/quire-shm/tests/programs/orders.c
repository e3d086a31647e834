/* A program that does with shared memory what it is told, and says "done" or a number.
 *
 *     orders NAME SIZE
 *
 *     get N, set N VALUE, add N TIMES   a word of the memory
 *     part N                            the page with this word is mapped once more, in the
 *                                       place of the one before, and words are used there
 *     again                             all is unmapped, and mapped again
 *     split                             of each four pages one may be read, one is unmapped
 *     sync                              msync of all
 *     fork N TIMES                      a child adds, and is killed
 *     mutex N                           a mutex that processes share is made there
 *     count N TIMES                     adds without atomics, under a mutex one page behind
 *     policy N                          sees that the thread that answers faults is scheduled so
 *     revokers N                         sees that it has so many revokers, and no other children
 *     kill                              this program is killed */
#include "common.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#define PAGE 4096
#define WORDS (PAGE / 8)

static _Atomic uint64_t *memory, *part;
static size_t size, first;
static int fd;

static void *map(void *at, size_t offset, size_t length, int flags) {
  void *mapped = mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, offset);
  CHECK(mapped != MAP_FAILED);
  return mapped;
}

static _Atomic uint64_t *word(size_t n) {
  if (part != NULL && n >= first && n < first + WORDS)
    return part + (n - first);
  return memory + n;
}

static void add(size_t n, long times) {
  for (long i = 0; i < times; i++)
    atomic_fetch_add(word(n), 1);
}

static void map_part(size_t n) {
  first = n - n % WORDS;
  part = map((void *)part, first * 8, PAGE, part == NULL ? 0 : MAP_FIXED);
}

static void split(void) {
  char *bytes = (char *)memory;
  for (size_t at = 0; at + 4 * PAGE <= size; at += 4 * PAGE) {
    CHECK(mprotect(bytes + at + PAGE, PAGE, PROT_READ) == 0);
    CHECK(munmap(bytes + at + 2 * PAGE, PAGE) == 0);
  }
}

static void add_in_a_child(size_t n, long times) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    add(n, times);
    kill(getpid(), SIGKILL);
  }
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

static void count(size_t n, long times) {
  pthread_mutex_t *mutex = (pthread_mutex_t *)word(n + WORDS);
  volatile uint64_t *counter = (volatile uint64_t *)word(n);
  for (long i = 0; i < times; i++) {
    CHECK(pthread_mutex_lock(mutex) == 0);
    *counter = *counter + 1;
    CHECK(pthread_mutex_unlock(mutex) == 0);
  }
}

static void make_mutex(size_t n) {
  pthread_mutexattr_t shared;
  CHECK(pthread_mutexattr_init(&shared) == 0);
  CHECK(pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0);
  CHECK(pthread_mutex_init((pthread_mutex_t *)word(n), &shared) == 0);
}

static int may_be_realtime(void) {
  struct sched_param first = {.sched_priority = 1}, none = {0};
  if (sched_setscheduler(0, SCHED_RR, &first) != 0)
    return 0;
  CHECK(sched_setscheduler(0, SCHED_OTHER, &none) == 0);
  return 1;
}

static int is_called(pid_t thread, const char *wanted) {
  char path[64], name[32] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/comm", thread);
  FILE *file = fopen(path, "r");
  int is_read = file != NULL && fscanf(file, "%31s", name) == 1;
  if (file != NULL)
    fclose(file);
  return is_read && strcmp(name, wanted) == 0;
}

static void see_policy(int policy) {
  if (!may_be_realtime()) {
    fprintf(stderr, "SKIP: policy: this system allows no real-time priority\n");
    return;
  }
  DIR *threads = opendir("/proc/self/task");
  CHECK(threads != NULL);
  int found = 0;
  for (struct dirent *entry; (entry = readdir(threads)) != NULL;) {
    pid_t thread = atoi(entry->d_name);
    if (thread == 0 || !is_called(thread, "quire-dsm"))
      continue;
    found++;
    CHECK((sched_getscheduler(thread) & ~SCHED_RESET_ON_FORK) == policy);
  }
  closedir(threads);
  CHECK(found == 1);
}

/* A revoker is a child that `wait` does not know. */
static void see_revokers(int count) {
  DIR *processes = opendir("/proc");
  CHECK(processes != NULL);
  int found = 0;
  for (struct dirent *entry; (entry = readdir(processes)) != NULL;) {
    char path[300], name[32] = "";
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
    FILE *file = atoi(entry->d_name) == 0 ? NULL : fopen(path, "r");
    if (file == NULL)
      continue;
    int is_read = fscanf(file, "%*d (%31[^)]) %*c %d", name, &parent) == 2;
    fclose(file);
    found += is_read && parent == getpid() && strcmp(name, "quire-revoker") == 0;
  }
  closedir(processes);
  CHECK(found == count);
  CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

static void obey(const char *order, size_t n, long value) {
  if (strcmp(order, "set") == 0)
    atomic_store(word(n), value);
  else if (strcmp(order, "add") == 0)
    add(n, value);
  else if (strcmp(order, "part") == 0)
    map_part(n);
  else if (strcmp(order, "again") == 0) {
    CHECK(munmap((void *)memory, size) == 0);
    memory = map(NULL, 0, size, 0);
  } else if (strcmp(order, "split") == 0)
    split();
  else if (strcmp(order, "sync") == 0)
    CHECK(msync((void *)memory, size, MS_SYNC) == 0);
  else if (strcmp(order, "fork") == 0)
    add_in_a_child(n, value);
  else if (strcmp(order, "mutex") == 0)
    make_mutex(n);
  else if (strcmp(order, "count") == 0)
    count(n, value);
  else if (strcmp(order, "policy") == 0)
    see_policy(n);
  else if (strcmp(order, "revokers") == 0)
    see_revokers(n);
  else
    CHECK(strcmp(order, "kill") == 0 && kill(getpid(), SIGKILL) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  size = atol(argv[2]);
  fd = shm_open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, size) == 0);
  memory = map(NULL, 0, size, 0);
  say("done");
  char line[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    char order[16];
    unsigned long n = 0;
    long value = 0;
    CHECK(sscanf(line, "%15s %lu %ld", order, &n, &value) >= 1);
    if (strcmp(order, "get") == 0) {
      printf("%lu\n", (unsigned long)atomic_load(word(n)));
      fflush(stdout);
    } else {
      obey(order, n, value);
      say("done");
    }
  }
  return 0;
}
