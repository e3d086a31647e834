/* Small enough for a program that runs it by interpreting it: memory, a fork, and a thread. */
#include "common.h"
#include <pthread.h>

static void *use(void *unused) {
  char *block = malloc(MIB(40));
  CHECK(block != NULL);
  memset(block, 1, MIB(40));
  free(block);
  return unused;
}

int main(void) {
  char *block = malloc(MIB(40)), *memory = map_anon(MIB(40));
  CHECK(block != NULL);
  memset(block, 1, MIB(40));
  memset(memory, 2, MIB(40));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    memory[5] = 9;
    use(NULL);
    _exit(memory[6] != 2 || block[7] != 1);
  }
  reap(child, 0);
  CHECK(memory[5] == 2);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, use, NULL) == 0 && pthread_join(thread, NULL) == 0);
  free(block);
  puts("checked ok");
  return 0;
}
