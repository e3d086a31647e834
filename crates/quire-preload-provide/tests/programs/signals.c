/* Signal handlers that use memory while the interrupted code does so too: a
 * timer at 1 kHz and storms from another thread, whose handlers touch fresh
 * pages, map and unmap, and fork; an alternate stack on memory that was never
 * touched.  Arguments: MiB to touch, milliseconds. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

#define WORKERS 3
#define HANDLER_MAP MIB(4)

static char *fresh; /* pages that only handlers touch, each once */
static size_t fresh_pages;
static atomic_size_t cursor, alarms, storms, forks, stacked;
static atomic_int stop;
static char *alternate;
static size_t alternate_size;

static void touch_fresh(void) {
  size_t at = atomic_fetch_add(&cursor, 1);
  if (at >= fresh_pages)
    return; /* all used: the program goes on with fewer touches */
  /* Neighbours in time lie in different superpages. */
  size_t page = at % (fresh_pages / 512) * 512 + at / (fresh_pages / 512);
  CHECK_STAMP(fresh + page * PAGE, 0);
  stamp(fresh + page * PAGE, page + 1);
}

static void map_in_handler(uint64_t tag) {
  char *memory = map_anon(HANDLER_MAP);
  for (size_t offset = tag % 16 * PAGE; offset < HANDLER_MAP; offset += 64 * PAGE) {
    CHECK_STAMP(memory + offset, 0);
    stamp(memory + offset, tag);
    CHECK_STAMP(memory + offset, tag);
  }
  CHECK(munmap(memory, HANDLER_MAP) == 0);
}

static void on_alarm(int signal) {
  int saved = errno;
  (void)signal;
  size_t n = atomic_fetch_add(&alarms, 1) + 1;
  touch_fresh();
  map_in_handler(n);
  errno = saved;
}

static void on_storm(int signal) {
  int saved = errno;
  (void)signal;
  size_t n = atomic_fetch_add(&storms, 1) + 1;
  touch_fresh();
  if (n % 16 == 0)
    map_in_handler(n);
  errno = saved;
}

/* A child from within a handler: _Fork is what a handler may call. */
static void on_fork(int signal) {
  int saved = errno;
  (void)signal;
  pid_t child = _Fork();
  CHECK(child >= 0);
  if (child == 0) {
    touch_fresh();
    stamp(fresh, 1);
    map_in_handler(5);
    _exit(23);
  }
  reap(child, 23);
  atomic_fetch_add(&forks, 1);
  errno = saved;
}

/* Runs on the alternate stack and uses a good deal of it. */
static void on_stacked(int signal) {
  (void)signal;
  volatile char deep[256 << 10];
  char *here = (char *)&deep[0];
  CHECK(here > alternate && here < alternate + alternate_size);
  for (size_t i = 0; i < sizeof deep; i += PAGE)
    deep[i] = (char)(i / PAGE);
  for (size_t i = 0; i < sizeof deep; i += PAGE)
    CHECK(deep[i] == (char)(i / PAGE));
  atomic_fetch_add(&stacked, 1);
}

/* Faults memory in and allocates until told to stop. */
static void *work(void *argument) {
  uint64_t state = (uintptr_t)argument;
  size_t size = MIB(16);
  do {
    char *memory = map_anon(size);
    uint64_t tag = next_random(&state);
    for (size_t offset = 0; offset < size; offset += PAGE) {
      CHECK_STAMP(memory + offset, 0);
      stamp(memory + offset, tag + offset);
      if (offset % (16 * PAGE) == 0) {
        size_t bytes = 1 + below(&state, 300000);
        unsigned char *block = malloc(bytes);
        CHECK(block != NULL);
        memset(block, 0x3c, bytes);
        block = realloc(block, bytes * 2);
        CHECK(block != NULL && block[0] == 0x3c && block[bytes - 1] == 0x3c);
        free(block);
      }
    }
    for (size_t offset = 0; offset < size; offset += PAGE)
      CHECK_STAMP(memory + offset, tag + offset);
    CHECK(munmap(memory, size) == 0);
  } while (!atomic_load(&stop));
  return NULL;
}

static void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | flags};
  CHECK(sigemptyset(&action.sa_mask) == 0);
  CHECK(sigaction(signal, &action, NULL) == 0);
}

static void use_alternate_stack(void) {
  alternate_size = MIB(6);
  for (unsigned i = 0; i < 8; i++) {
    alternate = map_anon(alternate_size);
    stack_t stack = {.ss_sp = alternate, .ss_size = alternate_size};
    CHECK(sigaltstack(&stack, NULL) == 0);
    CHECK(raise(SIGURG) == 0);
    CHECK(raise(SIGURG) == 0);
    stack.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&stack, NULL) == 0);
    CHECK(munmap(alternate, alternate_size) == 0);
  }
}

/* Slow handlers leave little time to the rest: then it goes on for longer. */
static int enough(void) {
  return atomic_load(&alarms) > 20 && atomic_load(&storms) > 100 && atomic_load(&forks) > 2;
}

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 128));
  uint64_t ms = argument(argc, argv, 2, 1800);
  fresh_pages = size / PAGE;
  fresh = map_anon(size);
  handle(SIGALRM, on_alarm, 0);
  handle(SIGUSR1, on_storm, 0);
  handle(SIGUSR2, on_fork, 0);
  handle(SIGURG, on_stacked, SA_ONSTACK);
  use_alternate_stack();

  pthread_t workers[WORKERS];
  for (size_t i = 0; i < WORKERS; i++)
    CHECK(pthread_create(&workers[i], NULL, work, (void *)(i + 1)) == 0);
  struct itimerval every = {{0, 1000}, {0, 1000}};
  CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
  double end = seconds() + (double)ms / 1000;
  for (uint64_t turn = 0; seconds() < end || (!enough() && seconds() < end + 15); turn++) {
    CHECK(pthread_kill(workers[turn % WORKERS], SIGUSR1) == 0);
    if (turn % 100 == 0)
      CHECK(pthread_kill(workers[turn / 100 % WORKERS], SIGUSR2) == 0);
    if (turn % 16 == 0)
      touch_fresh();
    if (turn % 64 == 0)
      free(memset(malloc(100000), 1, 100000));
    struct timespec rest = {0, 100000};
    nanosleep(&rest, NULL);
  }
  struct itimerval never = {0};
  CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
  atomic_store(&stop, 1);
  for (size_t i = 0; i < WORKERS; i++)
    CHECK(pthread_join(workers[i], NULL) == 0);

  size_t used = atomic_load(&cursor) < fresh_pages ? atomic_load(&cursor) : fresh_pages;
  for (size_t at = 0; at < fresh_pages; at++) {
    size_t page = at % (fresh_pages / 512) * 512 + at / (fresh_pages / 512);
    CHECK_STAMP(fresh + page * PAGE, at < used ? page + 1 : 0);
  }
  if (!enough())
    FAIL("%zu alarms, %zu storms, %zu forks: handlers starve the program", atomic_load(&alarms),
         atomic_load(&storms), atomic_load(&forks));
  printf("alternate stack %zu times\n", atomic_load(&stacked));
  return 0;
}
