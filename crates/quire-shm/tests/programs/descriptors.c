/* Descriptors that are opened before the object has a size, and used after it was removed.
 *
 *     descriptors early NAME     opened several times before it has a size
 *     descriptors child NAME     a child gives it its size
 *     descriptors nameless NAME  removed before it has a size
 *     descriptors removed NAME   removed while a descriptor is all that is left of it
 *     descriptors anew NAME      made anew while there is an old descriptor
 *     descriptors inherited NAME  a child has the descriptor when its parent has ended
 *     descriptors successive NAME several children in turn, whose parents end at once
 *     descriptors orphans NAME   the same where another program removes it
 *     descriptors unlink NAME    is that one
 *     descriptors sent NAME      the descriptor is under way while others get the name
 *     descriptors again NAME     opens and closes it again and again
 *     descriptors emptied NAME   O_TRUNC of what it has descriptors of
 *     descriptors written NAME   a child gives it its size, removes it, and tries to write to the descriptor
 *     descriptors find NAME      opens it without a size, and waits until somebody gives it one;
 *     descriptors statx NAME     the same with other calls that tell the size
 *     descriptors fstatat NAME
 *     descriptors lseek NAME
 *     descriptors hold NAME      opens it, and maps it when it is told to; then closes it */
#include "common.h"

#include <sys/socket.h>
#include <sys/syscall.h>

#define SIZE 8192
#define RW (PROT_READ | PROT_WRITE)

static int get(const char *name, int flags) {
  int fd = shm_open(name, O_RDWR | flags, 0600);
  CHECK(fd >= 0);
  return fd;
}

static volatile unsigned char *map(int fd) {
  void *at = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

static void unmap(volatile unsigned char *at) { CHECK(munmap((void *)at, SIZE) == 0); }

static long size_of(int fd) {
  struct stat about;
  CHECK(fstat(fd, &about) == 0);
  return about.st_size;
}

static long by_statx(int fd) {
  struct statx about;
  CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &about) == 0);
  return about.stx_size;
}

static long by_fstatat(int fd) {
  struct stat about;
  CHECK(fstatat(fd, "", &about, AT_EMPTY_PATH) == 0);
  return about.st_size;
}

static long by_lseek(int fd) { return lseek(fd, 0, SEEK_END); }

static void await(pid_t child) {
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void early(const char *name) {
  int first = get(name, O_CREAT), second = get(name, 0), third = get(name, O_CREAT);
  FAILS(shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600) < 0, EEXIST);
  FAILS(mmap(NULL, SIZE, RW, MAP_SHARED, second, 0) == MAP_FAILED, ENXIO);
  CHECK(close(first) == 0 && size_of(second) == 0 && ftruncate(third, SIZE) == 0);
  CHECK(size_of(second) == SIZE);
  volatile unsigned char *one = map(second), *other = map(third);
  one[5] = 6;
  CHECK(other[5] == 6);
  CHECK(shm_unlink(name) == 0);
}

static void child(const char *name) {
  int fd = get(name, O_CREAT | O_EXCL);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    CHECK(ftruncate(fd, SIZE) == 0);
    map(fd)[1] = 2;
    exit(0);
  }
  await(pid);
  CHECK(size_of(fd) == SIZE && ftruncate(fd, SIZE) == 0);
  CHECK(map(fd)[1] == 2);
  CHECK(shm_unlink(name) == 0);
}

static void nameless(const char *name) {
  int fd = get(name, O_CREAT | O_EXCL);
  CHECK(shm_unlink(name) == 0);
  FAILS(shm_unlink(name) < 0, ENOENT);
  FAILS(shm_open(name, O_RDWR, 0) < 0, ENOENT);
  CHECK(ftruncate(fd, SIZE) == 0);
  FAILS(shm_open(name, O_RDWR, 0) < 0, ENOENT);
  volatile unsigned char *at = map(fd);
  at[1] = 2;
  CHECK(at[1] == 2);
}

static void removed(const char *name) {
  int fd = get(name, O_CREAT);
  CHECK(ftruncate(fd, SIZE) == 0);
  volatile unsigned char *at = map(fd);
  at[1] = 7;
  unmap(at);
  CHECK(shm_unlink(name) == 0);
  FAILS(shm_unlink(name) < 0, ENOENT);
  FAILS(shm_open(name, O_RDWR, 0) < 0, ENOENT);
  CHECK(size_of(fd) == SIZE);
  at = map(fd);
  CHECK(at[1] == 7);
  unmap(at);
  int copy = fcntl(fd, F_DUPFD, 50);
  CHECK(copy >= 50 && close(fd) == 0);
  at = map(copy);
  CHECK(at[1] == 7 && close(copy) == 0);
  unmap(at);
}

static void anew(const char *name) {
  int old = get(name, O_CREAT);
  CHECK(ftruncate(old, SIZE) == 0);
  volatile unsigned char *at = map(old);
  at[1] = 7;
  CHECK(shm_unlink(name) == 0);
  int new = get(name, O_CREAT | O_EXCL);
  CHECK(ftruncate(new, SIZE) == 0);
  volatile unsigned char *other = map(new);
  CHECK(other[1] == 0 && at[1] == 7);
  other[1] = 8;
  unmap(at);
  at = map(old);
  CHECK(at[1] == 7 && other[1] == 8 && map(get(name, 0))[1] == 8);
  CHECK(shm_unlink(name) == 0);
  FAILS(shm_open(name, O_RDWR, 0) < 0, ENOENT);
  CHECK(map(old)[1] == 7 && map(new)[1] == 8);
}

static void inherited(const char *name) {
  int fd = get(name, O_CREAT), pipes[2], ready[2];
  char byte = 0;
  CHECK(ftruncate(fd, SIZE) == 0 && pipe(pipes) == 0 && pipe(ready) == 0);
  volatile unsigned char *at = map(fd);
  at[1] = 7;
  unmap(at);
  CHECK(shm_unlink(name) == 0);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid > 0) {
    CHECK(read(ready[0], &byte, 1) == 1);
    exit(0);
  }
  /* Until the parent has ended. */
  CHECK(write(ready[1], &byte, 1) == 1);
  CHECK(close(pipes[1]) == 0 && read(pipes[0], &byte, 1) == 0);
  CHECK(map(fd)[1] == 7);
  say("has it");
}

static void unlink_it(const char *name) { CHECK(shm_unlink(name) == 0); }

static void successive_of(const char *name, void (*remove)(const char *)) {
  int fd = get(name, O_CREAT);
  CHECK(ftruncate(fd, SIZE) == 0);
  volatile unsigned char *at = map(fd);
  remove(name);
  for (int i = 0; i < 20; i++) {
    CHECK(at[i] == 0);
    at[i + 1] = at[i];
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0 && i % 2)
      syscall(SYS_exit_group, 0); /* as if it were killed */
    if (pid > 0)
      _exit(0);
  }
  at[1] = 1;
  CHECK(map(fd)[1] == 1);
  say("has it");
}

static void successive(const char *name) { successive_of(name, unlink_it); }

static void await_unlink(const char *name) {
  (void)name;
  say("made");
  hear();
}

static void orphans(const char *name) { successive_of(name, await_unlink); }

static void send_it(int to, int fd, struct msghdr *message) {
  struct cmsghdr *control = CMSG_FIRSTHDR(message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(control), &fd, sizeof fd);
  CHECK(sendmsg(to, message, 0) == 1 && close(fd) == 0);
}

static void sent(const char *name) {
  int ends[2], fd = get(name, O_CREAT | O_EXCL);
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && ftruncate(fd, SIZE) == 0);
  map(fd)[1] = 7;
  CHECK(shm_unlink(name) == 0);
  char byte = 0;
  struct iovec part = {&byte, 1};
  _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {0};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  send_it(ends[0], fd, &message);
  for (int i = 0; i < 100; i++) {
    int other = get(name, O_CREAT | O_EXCL);
    CHECK(ftruncate(other, SIZE) == 0 && close(get(name, 0)) == 0);
    CHECK(shm_unlink(name) == 0 && close(other) == 0);
  }
  CHECK(recvmsg(ends[1], &message, 0) == 1);
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  CHECK(size_of(fd) == SIZE && map(fd)[1] == 7);
}

/* In KiB. */
static long resident(void) {
  FILE *file = fopen("/proc/self/statm", "r");
  long all, resident;
  CHECK(file != NULL && fscanf(file, "%ld %ld", &all, &resident) == 2 && fclose(file) == 0);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void again(const char *name) {
  int fd = get(name, O_CREAT | O_EXCL);
  CHECK(ftruncate(fd, SIZE) == 0);
  volatile unsigned char *at = map(fd);
  long before = 0;
  for (int i = 0; i < 6000; i++) {
    if (i == 2000)
      before = resident();
    CHECK(close(get(name, 0)) == 0);
  }
  long more = resident() - before;
  if (more > 300)
    fprintf(stderr, "%ld KiB more\n", more);
  CHECK(more <= 300);
  at[1] = 7;
  CHECK(shm_unlink(name) == 0);
}

static void emptied(const char *name) {
  int old[3] = {get(name, O_CREAT | O_EXCL)}, new;
  CHECK(ftruncate(old[0], 2 * SIZE) == 0);
  old[1] = get(name, 0);
  old[2] = fcntl(old[1], F_DUPFD, 50);
  volatile unsigned char *at = map(old[0]);
  at[1] = 7;
  FAILS(shm_open(name, O_RDWR | O_TRUNC, 0) < 0, EBUSY);
  unmap(at);
  new = get(name, O_TRUNC);
  for (int i = 0; i < 3; i++)
    CHECK(size_of(old[i]) == 0);
  CHECK(fcntl(old[1], F_GETFD) == FD_CLOEXEC && fcntl(old[2], F_GETFD) == 0);
  CHECK(ftruncate(new, SIZE) == 0);
  for (int i = 0; i < 3; i++)
    CHECK(size_of(old[i]) == SIZE);
  FAILS(mmap(NULL, 2 * SIZE, RW, MAP_SHARED, old[0], 0) == MAP_FAILED, ENXIO);
  at = map(new);
  CHECK(at[1] == 0);
  at[1] = 8;
  unmap(at);
  CHECK(close(new) == 0 && close(old[0]) == 0 && close(old[1]) == 0);
  CHECK(shm_unlink(name) == 0);
  CHECK(map(old[2])[1] == 8);
}

static void written(const char *name) {
  int fd = get(name, O_CREAT | O_EXCL), made[2], seen[2];
  char byte = 0;
  CHECK(pipe(made) == 0 && pipe(seen) == 0);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    CHECK(ftruncate(fd, SIZE) == 0);
    map(fd)[1] = 7;
    CHECK(shm_unlink(name) == 0);
    CHECK(write(fd, "x", 1) == 1);
    CHECK(write(made[1], &byte, 1) == 1 && read(seen[0], &byte, 1) == 1);
    exit(0);
  }
  CHECK(read(made[0], &byte, 1) == 1);
  CHECK(size_of(fd) == SIZE);
  volatile unsigned char *at = map(fd);
  CHECK(at[1] == 7 && close(fd) == 0);
  /* The child is the last that has it. */
  unmap(at);
  CHECK(write(seen[1], &byte, 1) == 1);
  await(pid);
}

static void find_by(const char *name, long (*tell)(int)) {
  int fd = get(name, O_CREAT);
  CHECK(tell(fd) == 0);
  say("open");
  for (int i = 0; tell(fd) == 0; i++)
    CHECK(i < 20000 && usleep(1000) == 0);
  CHECK(tell(fd) == SIZE && size_of(fd) == SIZE);
  volatile unsigned char *at = map(fd);
  for (int i = 0; at[1] != 9; i++)
    CHECK(i < 20000 && usleep(1000) == 0);
}

static void find(const char *name) { find_by(name, size_of); }
static void find_statx(const char *name) { find_by(name, by_statx); }
static void find_fstatat(const char *name) { find_by(name, by_fstatat); }
static void find_lseek(const char *name) { find_by(name, by_lseek); }

static void hold(const char *name) {
  int fd = get(name, 0);
  say("open");
  hear();
  volatile unsigned char *at = map(fd);
  CHECK(at[1] == 9);
  unmap(at);
  say("has it");
  hear();
  CHECK(dup2(0, fd) == fd);
  say("closed");
  hear();
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  const struct {
    const char *name;
    void (*act)(const char *);
  } all[] = {{"early", early},     {"child", child}, {"nameless", nameless},
             {"removed", removed}, {"anew", anew},   {"inherited", inherited},
             {"successive", successive}, {"find", find},       {"statx", find_statx}, {"fstatat", find_fstatat},
             {"lseek", find_lseek}, {"hold", hold},  {"orphans", orphans},  {"unlink", unlink_it},
             {"sent", sent},        {"again", again},      {"emptied", emptied},
             {"written", written}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (strcmp(argv[1], all[i].name) == 0) {
      all[i].act(argv[2]);
      return 0;
    }
  }
  return 2;
}
