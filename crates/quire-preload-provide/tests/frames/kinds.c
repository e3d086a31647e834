/* Fills memory of every kind that can have a strategy, and says of each where it lies and
 * in which process: the stack, stacks of threads, static data of the program and of a
 * library, mappings that it names, and others.  With -DLIBRARY it is the library.
 * Waits until its input ends, and checks everything. */
#include "../programs/common.h"

#define STATIC MIB(1)

#ifdef LIBRARY

static char zeroed[STATIC];
char *library_data(void) { return zeroed; }

#else

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

char *library_data(void);

static char zeroed[STATIC];
static char zeroed_later[STATIC];

static void say(const char *what, const char *first, const char *end) {
  printf("%s %lx %lx %d\n", what, (unsigned long)first, (unsigned long)end, (int)getpid());
  fflush(stdout);
}

static char *page_above(const void *at) {
  return (char *)(((uintptr_t)at + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
}

static char *page_below(const void *at) {
  return (char *)((uintptr_t)at & ~(uintptr_t)(PAGE - 1));
}

static void fill(const char *what, char *memory, size_t size) {
  char *first = page_above(memory), *end = page_below(memory + size);
  stamp_range(first, end - first, 5);
  say(what, first, end);
}

static void wait_for_end(void) {
  char byte;
  CHECK(read(0, &byte, 1) == 0);
}

/* Uses so many pages of stack, and calls `then` at the end of them.  Says which pages were
 * not used before, given that `used` of them may have been. */
static __attribute__((noinline)) void deep(const char *what, size_t pages, char *high,
                                           void (*then)(void)) {
  volatile char frame[PAGE];
  memset((char *)frame, (int)pages, PAGE);
  if (pages > 0) {
    deep(what, pages - 1, high, then);
  } else {
    say(what, page_above((char *)frame), page_below(high));
    then();
  }
  for (size_t i = 0; i < PAGE; i += 64)
    CHECK(frame[i] == (char)pages);
}

/* Lets a child do something, which ends like it, and waits until it has said all. */
static pid_t in_child(void (*what)(void)) {
  int ends[2];
  char byte;
  CHECK(pipe(ends) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    close(ends[0]);
    /* From this mapping on, there are strategies again. */
    char *memory = map_anon(MIB(1));
    fill("child-mapping", memory, MIB(1));
    what();
    close(ends[1]);
    wait_for_end();
    check_range(memory, MIB(1), 5);
    _exit(0);
  }
  close(ends[1]);
  CHECK(read(ends[0], &byte, 1) == 0);
  close(ends[0]);
  return child;
}

static pid_t children[2];
static pthread_barrier_t threads_are_deep, threads_may_end;

static void nothing(void) {}

static void stay(void) {
  pthread_barrier_wait(&threads_are_deep);
  pthread_barrier_wait(&threads_may_end);
}

/* Where the part of a stack begins that is surely new: `used` bytes further down. */
static __attribute__((noinline)) char *below_here(size_t used) {
  return (char *)((uintptr_t)__builtin_frame_address(0) - used);
}

static void deeper_in_child(void) {
  deep("thread-child", 96, below_here(PAGE * 16), nothing);
}

static void stay_and_fork(void) {
  children[0] = in_child(deeper_in_child);
  stay();
}

static void *in_thread(void *name) {
  deep(name, 128, below_here(PAGE * 8), stay_and_fork);
  return name;
}

/* On a stack of which the thread of the parent used the first pages. */
static void *in_thread_of_child(void *name) {
  deep(name, 256, below_here(PAGE * 170), stay);
  return name;
}

static void run_thread(pthread_t *thread, void *(*what)(void *), char *name) {
  CHECK(pthread_barrier_init(&threads_are_deep, 0, 2) == 0);
  CHECK(pthread_barrier_init(&threads_may_end, 0, 2) == 0);
  CHECK(pthread_create(thread, 0, what, name) == 0);
  pthread_barrier_wait(&threads_are_deep);
}

static void end_thread(pthread_t thread) {
  pthread_barrier_wait(&threads_may_end);
  CHECK(pthread_join(thread, 0) == 0);
}

/* The stack of a thread of the parent is one that the C library can give to a new one. */
static void thread_of_child(void) {
  pthread_t thread;
  run_thread(&thread, in_thread_of_child, "child-thread");
  fill("child-static", zeroed_later, STATIC);
  deep("child-stack", 640, below_here(PAGE * 580), nothing);
}

/* Kernels that keep no names refuse. */
static void name(char *memory, size_t size, const char *text) {
  CHECK(prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, memory, size, text) == 0 || errno == EINVAL);
}

int main(void) {
  deep("stack", 512, below_here(PAGE * 32), nothing);
  pthread_t thread;
  run_thread(&thread, in_thread, "thread");
  fill("static", zeroed, STATIC);
  fill("library", library_data(), STATIC);
  children[1] = in_child(thread_of_child);
  char *named = map_anon(MIB(4));
  name(named, MIB(4), "pool");
  fill("named", named, MIB(4));
  char *by_number = (char *)syscall(SYS_mmap, 0L, MIB(4), (long)(PROT_READ | PROT_WRITE),
                                    (long)(MAP_PRIVATE | MAP_ANONYMOUS), -1L, 0L);
  CHECK(by_number != MAP_FAILED);
  CHECK(syscall(SYS_prctl, (long)PR_SET_VMA, (long)PR_SET_VMA_ANON_NAME, by_number, MIB(4),
                "pool") == 0 || errno == EINVAL);
  fill("named-by-number", by_number, MIB(4));
  char *other = map_anon(MIB(4));
  name(other, MIB(4), "other");
  fill("other", other, MIB(4));
  char *large = map_anon(MIB(8));
  fill("large", large, MIB(8));
  char *populated = mmap(0, MIB(1), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  CHECK(populated != MAP_FAILED);
  say("populated", populated, populated + MIB(1));
  printf("end\n");
  fflush(stdout);
  wait_for_end();
  for (int i = 0; i < 2; i++) {
    int status;
    CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
  }
  end_thread(thread);
  check_range(page_above(zeroed), STATIC - PAGE, 5);
  check_range(page_above(library_data()), STATIC - PAGE, 5);
  check_range(named, MIB(4), 5);
  check_range(large, MIB(8), 5);
  check_zero_range(populated, MIB(1));
  return 0;
}

#endif
