/* A control group is frozen while its process reads into memory that it has not touched: it is frozen soon, and goes on
 * when it is thawed.  Says so on the error output where there is no freezer to be had. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

static volatile int ends;

/* Reading ends early where the thread is frozen. */
static void read_all(int fd, char *to, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t got = read(fd, to + done, size - done);
    CHECK(got > 0 || (got < 0 && errno == EINTR));
    done += got > 0 ? (size_t)got : 0;
  }
}

static void *work(void *unused) {
  int zero = open("/dev/zero", O_RDONLY), own = open("/proc/self/exe", O_RDONLY);
  CHECK(zero >= 0 && own >= 0);
  while (!ends) {
    char *memory = map_anon(MIB(8));
    for (size_t at = 0; at < MIB(8); at += 65536)
      read_all(zero, memory + at, 60000);
    CHECK(pread(own, memory + 100000, 4000, 0) == 4000 && memory[100001] == 'E');
    for (size_t at = 0; at < MIB(8); at += 131072)
      memory[at] = 1;
    for (size_t at = 0; at < MIB(8); at += 131072)
      CHECK(memory[at] == 1);
    CHECK(munmap(memory, MIB(8)) == 0);
  }
  return unused;
}

static void child(void) {
  char *heap = malloc(MIB(30));
  CHECK(heap != NULL);
  memset(heap, 1, MIB(30));
  pthread_t threads[3];
  for (int i = 0; i < 3; i++)
    CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
  pause();
}

static char group[200];
static int unified;

static int put(const char *file, const char *text) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", group, file);
  int fd = open(path, O_WRONLY);
  if (fd < 0)
    return 0;
  ssize_t done = write(fd, text, strlen(text));
  close(fd);
  return done == (ssize_t)strlen(text);
}

static int is_frozen(void) {
  char path[300], text[200] = "";
  snprintf(path, sizeof path, "%s/%s", group, unified ? "cgroup.events" : "freezer.state");
  int fd = open(path, O_RDONLY);
  CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
  close(fd);
  return strstr(text, unified ? "frozen 1" : "FROZEN") != NULL;
}

static void freeze(int on) {
  CHECK(unified ? put("cgroup.freeze", on ? "1" : "0") : put("freezer.state", on ? "FROZEN" : "THAWED"));
}

int main(void) {
  unified = access("/sys/fs/cgroup/freezer", F_OK) != 0;
  const char *root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/freezer";
  snprintf(group, sizeof group, "%s/quire-test-frozen.%d", root, (int)getpid());
  pid_t process = fork();
  CHECK(process >= 0);
  if (process == 0) {
    child();
    _exit(0);
  }
  char number[20];
  snprintf(number, sizeof number, "%d", (int)process);
  if (mkdir(group, 0700) != 0 || !put("cgroup.procs", number)) {
    fprintf(stderr, "SKIP: no group that can be frozen\n");
  } else {
    usleep(300000);
    for (int round = 0; round < 40; round++) {
      freeze(1);
      int frozen = 0;
      for (int look = 0; look < 200 && !(frozen = is_frozen()); look++)
        usleep(5000);
      freeze(0);
      CHECK(frozen);
      usleep(20000);
    }
    int status;
    CHECK(waitpid(process, &status, WNOHANG) == 0);
  }
  kill(process, SIGKILL);
  CHECK(waitpid(process, NULL, 0) == process);
  usleep(10000);
  rmdir(group);
  puts("ok");
  return 0;
}
