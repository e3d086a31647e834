/* What few programs do with shared memory, and with children beside it.
 *
 *     unusual remap NAME     remap_file_pages
 *     unusual reopen NAME    opens the descriptor anew by its name in /proc
 *     unusual apart NAME     keeps memory from its children
 *     unusual wait NAME      waits for children that raise no signal */
#include "common.h"

#include <sched.h>
#include <signal.h>

#define PAGE 4096
#define SIZE (4 * PAGE)
#define RW (PROT_READ | PROT_WRITE)

static int remap(unsigned char *at) {
  FAILS(remap_file_pages(at, PAGE, 0, 2, 0) < 0, EINVAL);
  at[0] = 1;
  CHECK(at[2 * PAGE] == 0);
  return 0;
}

static void reopened(int fd, unsigned char *at) {
  char byte;
  CHECK(fd >= 0);
  CHECK(read(fd, &byte, 1) == 1 && byte == (char)at[0]);
  volatile unsigned char *again = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
  CHECK(again != MAP_FAILED);
  at[PAGE]++;
  CHECK(again[PAGE] == at[PAGE]);
  CHECK(munmap((void *)again, SIZE) == 0 && close(fd) == 0);
}

static int reopen(int fd, unsigned char *at) {
  char path[64];
  const char *names[] = {"/proc/self/fd/%d", "/dev/fd/%d"};
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, names[i], fd);
    reopened(open(path, O_RDONLY), at);
    reopened(openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC), at);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    FAILS(fgetc(file) == EOF && ferror(file), EBADF);
    CHECK(fclose(file) == 0);
  }
  CHECK(fcntl(open(path, O_RDONLY), F_GETFD) == 0);
  CHECK(fcntl(open(path, O_RDONLY | O_CLOEXEC), F_GETFD) == FD_CLOEXEC);
  /* Another program that is given the descriptor has the object, too. */
  char command[128];
  CHECK(fcntl(fd, F_SETFD, 0) == 0);
  for (int i = 0; i < 2; i++) {
    const char *reads[] = {"test $(wc -c < /dev/fd/%d) = %d", "test $(cat /dev/fd/%d | wc -c) = %d"};
    snprintf(command, sizeof command, reads[i], fd, (int)SIZE);
    CHECK(system(command) == 0);
  }
  /* What is no object's is as ever. */
  int other = memfd_create("other", MFD_ALLOW_SEALING);
  CHECK(write(other, "x", 1) == 1 && fcntl(other, F_ADD_SEALS, F_SEAL_WRITE) == 0);
  snprintf(path, sizeof path, "/proc/self/fd/%d", other);
  char byte = 0;
  CHECK(read(open(path, O_RDONLY), &byte, 1) == 1 && byte == 'x');
  return 0;
}

/* Whether a child ends by touching memory. */
static int is_lacking_in_a_child(volatile unsigned char *at) {
  int status;
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    at[0]++;
    _exit(0);
  }
  CHECK(waitpid(pid, &status, 0) == pid);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static int apart(int fd, unsigned char *at) {
  unsigned char *other = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
  CHECK(other != MAP_FAILED);
  CHECK(madvise(at + PAGE, PAGE, MADV_DONTFORK) == 0);
  CHECK(madvise(other, SIZE, MADV_DONTFORK) == 0);
  CHECK(!is_lacking_in_a_child(at));
  CHECK(is_lacking_in_a_child(at + PAGE) && is_lacking_in_a_child(other));
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    /* The addresses are free, and grandchildren lack it, too. */
    CHECK(is_lacking_in_a_child(at + PAGE) && !is_lacking_in_a_child(at));
    CHECK(mmap(other, SIZE, RW, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == other);
    other[0]++;
    _exit(0);
  }
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  CHECK(madvise(at, SIZE, MADV_DOFORK) == 0);
  CHECK(madvise(other + PAGE, PAGE, MADV_DOFORK) == 0);
  CHECK(!is_lacking_in_a_child(at + PAGE) && !is_lacking_in_a_child(other + PAGE));
  CHECK(is_lacking_in_a_child(other));
  /* The program itself has it all the time. */
  CHECK(at[0] == 3 && at[PAGE] == 2);
  return 0;
}

static int end(void *how) {
  _exit(*(int *)how);
}

static pid_t silent(int how) {
  static char stack[64 * 1024];
  static int status;
  status = how;
  pid_t pid = clone(end, stack + sizeof stack, 0, &status);
  CHECK(pid > 0);
  return pid;
}

static int wait_for_children(void) {
  int status;
  siginfo_t told;
  struct rusage *none = NULL;
  /* Who waits for the revoker is ended by this. */
  alarm(20);
  FAILS(waitpid(-1, &status, __WALL) < 0, ECHILD);
  FAILS(waitpid(-1, &status, __WCLONE) < 0, ECHILD);
  FAILS(waitpid(-1, &status, __WALL | WNOHANG) < 0, ECHILD);
  FAILS(wait4(-1, &status, __WALL, none) < 0, ECHILD);
  FAILS(wait3(&status, __WALL, none) < 0, ECHILD);
  FAILS(waitid(P_ALL, 0, &told, WEXITED | __WALL) < 0, ECHILD);
  pid_t child = silent(5);
  CHECK(waitpid(-1, &status, __WCLONE) == child && WEXITSTATUS(status) == 5);
  child = silent(6);
  CHECK(waitid(P_ALL, 0, &told, WEXITED | WNOWAIT | __WALL) == 0);
  CHECK(told.si_pid == child && told.si_status == 6);
  CHECK(waitid(P_ALL, 0, &told, WEXITED | __WALL) == 0 && told.si_pid == child);
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    usleep(200000);
    _exit(7);
  }
  FAILS(waitpid(-1, &status, __WCLONE) < 0, ECHILD);
  CHECK(waitpid(-1, &status, __WALL | WNOHANG) == 0);
  told.si_pid = 1;
  CHECK(waitid(P_ALL, 0, &told, WEXITED | WNOHANG | __WALL) == 0 && told.si_pid == 0);
  CHECK(wait4(-1, &status, __WALL, none) == child && WEXITSTATUS(status) == 7);
  FAILS(waitpid(-1, &status, __WALL) < 0, ECHILD);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  const char *what = argv[1];
  int fd = shm_open(argv[2], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  unsigned char *at = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED && shm_unlink(argv[2]) == 0);
  if (strcmp(what, "remap") == 0)
    return remap(at);
  if (strcmp(what, "reopen") == 0)
    return reopen(fd, at);
  if (strcmp(what, "apart") == 0)
    return apart(fd, at);
  return wait_for_children();
}
