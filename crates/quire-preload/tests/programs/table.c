/* The table of descriptors is the program's: nothing of the library is ever in it, and what the program closes is
 * closed, also while the library's thread starts. */
#include "promise.h"
#include <pthread.h>
#include <sys/file.h>
#include <sys/syscall.h>

static volatile int grown;

static void *grows(void *unused) {
  /* It opens nothing. */
  char *memory = grow(MIB(96));
  for (int i = 0; i < 60; i++) {
    char *more = grow(MIB(8));
    CHECK(munmap(more, MIB(8)) == 0);
  }
  check_range(memory, MIB(96), 1);
  grown = 1;
  return unused;
}

/* The lowest free number is the next, and what is listed is the program's. */
static void the_table_stays(void) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, grows, NULL) == 0);
  long looks = 0;
  for (; !grown; looks++) {
    int fd = open("/dev/null", O_RDONLY);
    if (fd != 3)
      FAIL("descriptor %d, wanted 3, after %ld", fd, looks);
    CHECK(close(3) == 0);
    for (int other = 3; other < 20; other++)
      CHECK_ERRNO(fcntl(other, F_GETFD), EBADF);
  }
  CHECK(pthread_join(thread, NULL) == 0);
  const char *tables[] = {"/proc/self/fd", "/proc/thread-self/fd"};
  for (int i = 0; i < 2; i++) {
    DIR *list = opendir(tables[i]);
    CHECK(list != NULL);
    for (struct dirent *entry; (entry = readdir(list)) != NULL;)
      CHECK(entry->d_name[0] == '.' || atoi(entry->d_name) <= 3);
    CHECK(closedir(list) == 0);
  }
}

/* The writer is closed when the thread has just been started, or is about to be. */
static void ends_of_pipes(int round) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  char *memory = map_anon(MIB(128));
  usleep((useconds_t)(round % 4 * 150));
  double begin = seconds();
  CHECK(close(ends[1]) == 0);
  char byte;
  CHECK(read(ends[0], &byte, 1) == 0);
  if (seconds() - begin > 0.5)
    FAIL("the end of a pipe is seen after %.2f s", seconds() - begin);
  memory[0] = 1;
  _exit(0);
}

int main(void) {
  /* The numbers begin at 3. */
  CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0);
  for (int round = 0; round < 60; round++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
      ends_of_pipes(round);
    reap(child, 0);
  }
  the_table_stays();
  /* A lock of a file goes with the program's last descriptor. */
  char name[] = "lock.XXXXXX";
  int fd = mkstemp(name);
  CHECK(fd == 3 && flock(fd, LOCK_EX) == 0 && close(fd) == 0);
  fd = open(name, O_RDONLY);
  CHECK(fd == 3 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(name) == 0);
  puts("table ok");
  return 0;
}
