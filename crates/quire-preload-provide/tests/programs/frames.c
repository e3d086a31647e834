/* Fills memory of several kinds, page by page, and says where each lies: what a
 * thread filled in order and what one filled at random, blocks of the heap, and
 * what a child maps that was forked.  Waits until its input ends.
 * Argument: MiB that are filled in order. */
#include "common.h"

#include <pthread.h>
#include <sys/wait.h>

static void say(const char *what, char *memory, size_t size) {
  printf("%s %lx %lx\n", what, (unsigned long)memory, (unsigned long)(memory + size));
  fflush(stdout);
}

static void *fill_at_random(void *memory) {
  size_t pages = MIB(4) / PAGE;
  for (size_t i = 0; i < pages; i++) {
    size_t page = (i * 389 + 7) % pages;
    stamp_range((char *)memory + page * PAGE, PAGE, page);
  }
  return memory;
}

static void wait_for_end(void) {
  char byte;
  CHECK(read(0, &byte, 1) == 0);
}

static void in_child(void) {
  char *memory = map_anon(MIB(4));
  stamp_range(memory, MIB(4), 3);
  say("child", memory, MIB(4));
  wait_for_end();
  check_range(memory, MIB(4), 3);
  _exit(0);
}

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 8));
  char *ordered = map_anon(size);
  stamp_range(ordered, size, 1);
  say("ordered", ordered, size);
  char *random = map_anon(MIB(4));
  pthread_t thread;
  CHECK(pthread_create(&thread, 0, fill_at_random, random) == 0);
  CHECK(pthread_join(thread, 0) == 0);
  say("random", random, MIB(4));
  char *block = malloc(MIB(3));
  CHECK(block);
  stamp_range(block, MIB(3), 2);
  char *first = (char *)(((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
  say("heap", first, MIB(3) - PAGE);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0)
    in_child();
  /* What has been filled is the child's as well, until it is written anew. */
  printf("pid %d\n", child);
  fflush(stdout);
  wait_for_end();
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  check_range(ordered, size, 1);
  for (size_t page = 0; page < MIB(4) / PAGE; page++)
    check_range(random + page * PAGE, PAGE, page);
  check_range(block, MIB(3), 2);
  return 0;
}
