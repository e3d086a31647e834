/* Other programs are started in every way while one thread makes the process grow. */
#include "promise.h"
#include <pthread.h>
#include <spawn.h>

extern char **environ;
static volatile int stop;

static void *grows(void *unused) {
  uint64_t state = 1;
  char *kept = grow_up();
  while (!stop) {
    size_t len = MIB(1 + below(&state, 24));
    char *memory = grow(len);
    char *block = malloc(len);
    CHECK(block != NULL);
    memset(block, 1, len);
    memory = mremap(memory, len, len + MIB(2), MREMAP_MAYMOVE);
    CHECK(memory != MAP_FAILED);
    check_range(memory, len, 1);
    CHECK(munmap(memory, len + MIB(2)) == 0);
    free(block);
  }
  check_range(kept, MIB(96), 1);
  return unused;
}

static __attribute__((noinline)) void by_vfork(int asks) {
  static char *argv[] = {"true", NULL};
  pid_t child = vfork();
  CHECK(child >= 0);
  if (child == 0) {
    /* It has the memory of its parent. */
    if (asks)
      mmap(NULL, MIB(160), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    execv("/bin/true", argv);
    _exit(9);
  }
  reap(child, 0);
}

int main(void) {
  char *argv[] = {"true", NULL};
  /* Before the process has grown, and again with a helper. */
  for (int i = 0; i < 3; i++)
    by_vfork(1);
  sleep_ms(10);
  CHECK(!has_helper() || helper() == 0 || threads() == 2);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, grows, NULL) == 0);
  for (int round = 0; round < 60; round++) {
    by_vfork(round % 10 == 0);
    pid_t child;
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, argv, environ) == 0);
    reap(child, 0);
    CHECK(system("exit 3") == 3 << 8);
    FILE *pipe = popen("echo said", "r");
    char line[20] = "";
    CHECK(pipe != NULL && fgets(line, sizeof line, pipe) != NULL && strcmp(line, "said\n") == 0);
    CHECK(pclose(pipe) == 0);
  }
  stop = 1;
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(!has_helper() || wait_for_helper(1, 5));
  puts("starts ok");
  return 0;
}
