/* The library starts its thread at whatever moment the program grows: nothing hangs.
 * Argument: dlopen, signal, thread, atexit, before (a constructor), tls. */
#include "promise.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t handled;

static void by_dlopen(void) {
  void *library = dlopen("./grows.so", RTLD_NOW);
  if (library == NULL)
    FAIL("%s", dlerror());
  int *seen = dlsym(library, "seen_in_constructor");
  CHECK(seen != NULL && (!has_helper() || *seen));
  CHECK(dlclose(library) == 0);
}

static void on_alarm(int number) {
  (void)number;
  char *memory = mmap(NULL, MIB(4), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) {
    memset(memory, 1, MIB(4));
    handled++;
  }
}

/* While the program is inside its allocator, or the loader. */
static void by_signal(void) {
  struct sigaction action = {.sa_handler = on_alarm};
  CHECK(sigaction(SIGALRM, &action, NULL) == 0);
  struct itimerval every = {{0, 5000}, {0, 5000}};
  CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
  uint64_t state = 1;
  void *blocks[64] = {0};
  while (handled < 60) {
    size_t i = below(&state, 64);
    free(blocks[i]);
    blocks[i] = malloc(1 + below(&state, 300000));
    if (i == 0) {
      void *library = dlopen("libm.so.6", RTLD_NOW);
      if (library != NULL)
        dlclose(library);
    }
  }
  struct itimerval never = {{0, 0}, {0, 0}};
  CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

/* Where malloc itself is called by the handler, when the program is not inside of it. */
static void in_handler(int number) {
  (void)number;
  char *memory = malloc(MIB(128));
  CHECK(memory != NULL);
  memset(memory, 1, MIB(128));
  handled++;
}

static void *in_thread(void *unused) {
  char *memory = malloc(MIB(128));
  CHECK(memory != NULL);
  memset(memory, 1, MIB(128));
  return unused;
}

static void at_the_end(void) {
  in_thread(NULL);
  CHECK(!has_helper() || wait_for_helper(1, 5));
  puts("at the end");
}

static char *before;

static __attribute__((constructor)) void in_constructor(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "before") == 0)
    before = grow_up();
}

/* A thread's first use of a variable that the loader allocates. */
static void by_tls(void) {
  void *library = dlopen("./locals.so", RTLD_NOW);
  if (library == NULL)
    FAIL("%s", dlerror());
  char *(*local)(void) = (char *(*)(void))dlsym(library, "local");
  CHECK(local != NULL);
  local()[MIB(80)] = 7;
  memset(local(), 1, MIB(96));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  const char *when = argv[1];
  if (strcmp(when, "dlopen") == 0)
    by_dlopen();
  if (strcmp(when, "signal") == 0)
    by_signal();
  if (strcmp(when, "tls") == 0)
    by_tls();
  if (strcmp(when, "handler") == 0) {
    struct sigaction action = {.sa_handler = in_handler};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0 && handled == 1);
  }
  if (strcmp(when, "thread") == 0) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, in_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
  }
  if (strcmp(when, "before") == 0)
    check_range(before, MIB(96), 1);
  if (strcmp(when, "atexit") == 0)
    CHECK(atexit(at_the_end) == 0);
  else if (has_helper() && !wait_for_helper(1, 5))
    FAIL("there is no helper after growth in %s", when);
  puts("moments ok");
  return 0;
}
