/* The process ends when the last thread of the program ends, in whatever way: the library's thread does not keep it.
 * Argument: return (of the last thread, after pthread_exit of the first), bare (the system call exit), first (the
 * first thread alone, by that call), kept (a thread stays after the first has gone). */
#include "promise.h"
#include <pthread.h>
#include <sys/syscall.h>

static const char *how;

static void *last(void *memory) {
  sleep_ms(strcmp(how, "kept") == 0 ? 2500 : 100);
  check_range(memory, MIB(96), 1);
  if (strcmp(how, "bare") == 0)
    syscall(SYS_exit, 9);
  if (strcmp(how, "kept") == 0) {
    /* The library's thread is still there, and works. */
    char *more = grow(MIB(64));
    check_range(more, MIB(64), 1);
    _exit(5);
  }
  return NULL;
}

static void leave(void) {
  char *memory = grow_up();
  pthread_t thread;
  if (strcmp(how, "first") != 0)
    CHECK(pthread_create(&thread, NULL, last, memory) == 0);
  if (strcmp(how, "return") == 0)
    pthread_exit(NULL);
  syscall(SYS_exit, 7);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  how = argv[1];
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0)
    leave();
  double begin = seconds();
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (seconds() - begin > 8) {
      kill(child, SIGKILL);
      FAIL("the process does not end");
    }
    sleep_ms(5);
  }
  NOTE("%s: ended after %.1f s", how, seconds() - begin);
  CHECK(strcmp(how, "kept") == 0 || seconds() - begin < 4.5);
  printf("status %#x\n", status);
  return 0;
}
