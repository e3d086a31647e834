/* Text of several superpages, and what depends on its addresses: exceptions
 * and backtraces through it, dladdr, signal handlers in it, a fork.  The
 * padding inside the functions is never executed.
 *
 * Compiled as a program, or with -DLIBRARY as a library for dlopen.  As a
 * program, the arguments are: a mode, and for `load` a library. */
#include <dlfcn.h>
#include <execinfo.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <stdexcept>

#define PADDED(name, next)                                                     \
  extern "C" __attribute__((noinline)) int name(int depth) {                   \
    if (depth < 0)                                                             \
      __asm__ volatile(".fill 393216, 1, 0x90");                               \
    return next(depth + 1) + 1;                                                \
  }

extern "C" __attribute__((noinline)) int deepest(int depth) {
  void *frames[64];
  int count = backtrace(frames, 64);
  int named = 0;
  for (int i = 0; i < count; i++) {
    Dl_info info;
    if (dladdr(frames[i], &info) && info.dli_sname && !strncmp(info.dli_sname, "step", 4))
      named++;
  }
  printf("depth %d, %d frames of step\n", depth, named);
  fflush(stdout);
  if (named >= 16)
    throw std::runtime_error("from the bottom");
  return 0;
}

PADDED(step15, deepest)
PADDED(step14, step15)
PADDED(step13, step14)
PADDED(step12, step13)
PADDED(step11, step12)
PADDED(step10, step11)
PADDED(step9, step10)
PADDED(step8, step9)
PADDED(step7, step8)
PADDED(step6, step7)
PADDED(step5, step6)
PADDED(step4, step5)
PADDED(step3, step4)
PADDED(step2, step3)
PADDED(step1, step2)
PADDED(step0, step1)

/* Goes down through the text and comes back by an exception. */
extern "C" __attribute__((noinline)) int descend(void) {
  try {
    return step0(0);
  } catch (const std::exception &error) {
    printf("caught: %s\n", error.what());
    return 1;
  }
}

/* Burns time in the middle of the text. */
extern "C" __attribute__((noinline)) unsigned long burn(unsigned long turns) {
  if (turns == 0)
    __asm__ volatile(".fill 2097152, 1, 0x90");
  unsigned long sum = 0;
  for (unsigned long i = 0; i < turns; i++)
    __asm__ volatile("" : "+r"(sum));
  return sum;
}

/* So that `burn` lies in the middle of whole extents. */
extern "C" __attribute__((noinline)) void after(unsigned long turns) {
  if (turns == 0)
    __asm__ volatile(".fill 4194304, 1, 0x90");
}

#ifndef LIBRARY
static volatile sig_atomic_t handled;

static void on_signal(int number) { handled += number == SIGALRM; }

static void wait_for_input(void) {
  puts("ready");
  fflush(stdout);
  char byte;
  if (read(0, &byte, 1) < 0)
    exit(1);
}

static int load(const char *path) {
  for (int turn = 0; turn < 3; turn++) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
      return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*down)(void) = (int (*)(void))dlsym(library, "descend");
    if (!down || down() != 1)
      return 1;
    if (turn == 1)
      wait_for_input();
    if (dlclose(library) != 0)
      return 1;
    printf("closed\n");
  }
  return 0;
}

int main(int count, char **arguments) {
  const char *mode = count > 1 ? arguments[1] : "run";
  if (!strcmp(mode, "burn")) {
    struct timespec now, start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
      burn(10000000);
      clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec < 2);
    return 0;
  }
  if (!strcmp(mode, "burn-until")) {
    puts("ready");
    fflush(stdout);
    struct pollfd input = {0, POLLIN, 0};
    while (poll(&input, 1, 0) == 0)
      burn(10000000);
    return 0;
  }
  if (!strcmp(mode, "load")) {
    /* A process is managed once it has asked for some memory. */
    char *memory = (char *)calloc(1, 64 << 20);
    memset(memory, 1, 64 << 20);
    return load(arguments[2]);
  }
  signal(SIGALRM, on_signal);
  if (descend() != 1)
    return 1;
  pid_t child = fork();
  if (child == 0) {
    raise(SIGALRM);
    _exit(descend() == 1 && handled == 1 ? 0 : 1);
  }
  int status;
  if (waitpid(child, &status, 0) != child || status != 0)
    return 1;
  printf("child is done, descend is at +%#lx\n", (unsigned long)((char *)descend - (char *)step15));
  if (!strcmp(mode, "hold"))
    wait_for_input();
  after(1);
  return descend() == 1 ? 0 : 1;
}
#endif
