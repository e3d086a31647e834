/* Forks while the server is away: the child waits for it as its parent does.
 *
 *     away back NAME    it comes back
 *     away gone NAME    it does not */
#include "common.h"

#include <signal.h>

#define PAGE 4096
#define SIZE (8 * PAGE)

static unsigned char *whole, *part;

static int child(void) {
  /* A hole and a protection are as they were. */
  FAILS(write(1, whole + 6 * PAGE, 1) < 0, EFAULT);
  say("touching");
  CHECK(whole[5] == 42 && part[0] == 43);
  int pipes[2];
  CHECK(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1);
  FAILS(read(pipes[0], whole + 7 * PAGE, 1) < 0, EFAULT);
  CHECK(whole[7 * PAGE] == 44);
  whole[6] = 45;
  part[1] = 46;
  CHECK(msync(whole, SIZE, MS_SYNC) == 0);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  int fd = shm_open(argv[2], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  whole = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  part = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 3 * PAGE);
  CHECK(whole != MAP_FAILED && part != MAP_FAILED);
  whole[5] = 42;
  part[0] = 43;
  whole[7 * PAGE] = 44;
  CHECK(munmap(whole + 6 * PAGE, PAGE) == 0 && mprotect(whole + 7 * PAGE, PAGE, PROT_READ) == 0);
  CHECK(msync(whole, SIZE, MS_SYNC) == 0);
  say("made");
  hear();
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0)
    exit(child());
  int status;
  CHECK(waitpid(pid, &status, 0) == pid);
  if (strcmp(argv[1], "gone") == 0) {
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    _Exit(0);
  }
  CHECK(status == 0 && whole[6] == 45 && part[1] == 46);
  return 0;
}
