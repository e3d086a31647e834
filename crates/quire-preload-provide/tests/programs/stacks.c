/* Stacks of every kind, used deep: the process's own, those of threads that end in every
 * way, small ones, given ones, used again and by children; signals whose frames come to
 * lie on pages that nobody has touched, on the stack and on an alternate one.
 * Argument: rounds. */
#include "common.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <threads.h>

static size_t rounds;
static atomic_size_t handled, destroyed, cleaned;
static pthread_key_t key;
static __thread char own_variable[3 * PAGE];

/* Uses so many pages of stack, calls `then` at the end, and checks what it wrote. */
static __attribute__((noinline)) void deep(size_t pages, void (*then)(void)) {
  volatile char frame[PAGE];
  memset((char *)frame, (int)pages + 1, PAGE);
  if (pages > 0)
    deep(pages - 1, then);
  else
    then();
  for (size_t i = 0; i < PAGE; i += 61)
    CHECK(frame[i] == (char)(pages + 1));
}

static void nothing(void) {}

/* Zero where the stack was never used: whatever frame a page got, nobody else's data. */
static __attribute__((noinline)) void new_pages_are_zero(char *lowest, char *high) {
  for (char *page = lowest; page < high; page += PAGE)
    for (size_t i = 0; i < PAGE; i += 8)
      CHECK(*(volatile uint64_t *)(page + i) == 0);
}

static void use_memory(void) {
  char *memory = map_anon(MIB(3));
  stamp_range(memory, MIB(3), 9);
  check_range(memory, MIB(3), 9);
  CHECK(munmap(memory, MIB(3)) == 0);
  char *block = malloc(300000);
  CHECK(block);
  memset(block, 7, 300000);
  free(block);
}

/* A handler that needs stack, and memory, while the interrupted code is somewhere in
 * either. */
static void on_signal(int signal) {
  int saved = errno;
  (void)signal;
  deep(atomic_fetch_add(&handled, 1) % 24, nothing);
  char *memory = map_anon(MIB(1));
  stamp_range(memory, MIB(1), 3);
  CHECK(munmap(memory, MIB(1)) == 0);
  errno = saved;
}

static void on_small_stack(int signal) {
  int saved = errno;
  (void)signal;
  char *memory = map_anon(PAGE * 4);
  stamp_range(memory, PAGE * 4, 3);
  CHECK(munmap(memory, PAGE * 4) == 0);
  atomic_fetch_add(&handled, 1);
  errno = saved;
}

static void raise_usr1(void) { CHECK(raise(SIGUSR1) == 0); }

/* The frame of each signal lies where the stack was never used before. */
static __attribute__((noinline)) void signals_going_down(size_t count) {
  volatile char frame[3 * PAGE];
  frame[0] = 1;
  raise_usr1();
  if (count > 0)
    signals_going_down(count - 1);
  CHECK(frame[0] == 1);
}

static void alternate_stack(size_t size, int signal) {
  char *memory = map_anon(size + 2 * PAGE);
  /* What is below and above must stay as it is. */
  memset(memory, 0x55, PAGE);
  memset(memory + PAGE + size, 0x55, PAGE);
  stack_t stack = {.ss_sp = memory + PAGE, .ss_size = size}, before;
  CHECK(sigaltstack(&stack, &before) == 0);
  for (int i = 0; i < 3; i++) {
    size_t seen = atomic_load(&handled);
    CHECK(raise(signal) == 0);
    CHECK(atomic_load(&handled) > seen);
  }
  CHECK(sigaltstack(&before, NULL) == 0);
  for (size_t i = 0; i < PAGE; i++)
    CHECK(memory[i] == 0x55 && memory[PAGE + size + i] == 0x55);
  CHECK(munmap(memory, size + 2 * PAGE) == 0);
}

static void signals(void) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NODEFER};
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
  action.sa_flags = SA_ONSTACK;
  CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
  action.sa_handler = on_small_stack;
  CHECK(sigaction(SIGWINCH, &action, NULL) == 0);
  signals_going_down(40);
  alternate_stack(MIB(1), SIGUSR2);
  /* As small as programs make them: the frame of a signal and 8 KiB. */
  alternate_stack(sysconf(_SC_MINSIGSTKSZ) + 2 * PAGE, SIGWINCH);
}

static void note_destroyed(void *value) {
  CHECK(value == (void *)&key);
  deep(20, use_memory);
  atomic_fetch_add(&destroyed, 1);
}

static void note_cleaned(void *value) {
  CHECK(value == (void *)&cleaned);
  deep(20, nothing);
  atomic_fetch_add(&cleaned, 1);
}

static void *ends(void *how) {
  CHECK(pthread_setspecific(key, &key) == 0);
  for (size_t i = 0; i < sizeof own_variable; i++)
    CHECK(own_variable[i] == 0);
  memset(own_variable, 5, sizeof own_variable);
  deep(60, use_memory);
  pthread_cleanup_push(note_cleaned, &cleaned);
  if ((uintptr_t)how == 1)
    pthread_exit((void *)101);
  while ((uintptr_t)how == 2)
    sleep_ms(1);
  pthread_cleanup_pop(1);
  return (void *)(100 + (uintptr_t)how);
}

static void threads_end(const pthread_attr_t *attributes) {
  void *result;
  pthread_t threads[3];
  for (uintptr_t how = 0; how < 3; how++)
    CHECK(pthread_create(&threads[how], attributes, ends, (void *)how) == 0);
  CHECK(pthread_cancel(threads[2]) == 0);
  for (uintptr_t how = 0; how < 3; how++) {
    CHECK(pthread_join(threads[how], &result) == 0);
    CHECK(result == (how == 2 ? PTHREAD_CANCELED : (void *)(100 + how)));
  }
}

/* Of an own stack, this thread was given all, and no more. */
static void *knows_its_stack(void *given) {
  pthread_attr_t attributes;
  void *at;
  size_t size;
  char here;
  CHECK(pthread_getattr_np(pthread_self(), &attributes) == 0);
  CHECK(pthread_attr_getstack(&attributes, &at, &size) == 0);
  CHECK(pthread_attr_destroy(&attributes) == 0);
  CHECK(&here > (char *)at && &here < (char *)at + size);
  CHECK(given == NULL || given == at);
  if (given != NULL)
    new_pages_are_zero((char *)(((uintptr_t)at + PAGE - 1) & ~(PAGE - 1)), (char *)at + size / 2);
  deep((&here - (char *)at) / PAGE / 2 - 1, nothing);
  return given;
}

static void stacks_of_all_sizes(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  size_t sizes[] = {PTHREAD_STACK_MIN * 4, MIB(1), MIB(16), MIB(64)};
  for (int i = 0; i < 4; i++) {
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, sizes[i]) == 0);
    CHECK(pthread_create(&thread, &attributes, knows_its_stack, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    if (sizes[i] >= MIB(1))
      threads_end(&attributes);
    CHECK(pthread_attr_destroy(&attributes) == 0);
  }
  char *given = map_anon(MIB(1));
  CHECK(pthread_attr_init(&attributes) == 0);
  CHECK(pthread_attr_setstack(&attributes, given, MIB(1)) == 0);
  CHECK(pthread_create(&thread, &attributes, knows_its_stack, given) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(pthread_attr_destroy(&attributes) == 0);
  CHECK(munmap(given, MIB(1)) == 0);
}

static int of_c11(void *argument) {
  deep(50, use_memory);
  return argument == &key ? 17 : 18;
}

static void c11(void) {
  thrd_t thread;
  int result;
  CHECK(thrd_create(&thread, of_c11, &key) == thrd_success);
  CHECK(thrd_join(thread, &result) == thrd_success && result == 17);
}

static void *detached(void *left) {
  deep(30, nothing);
  atomic_fetch_sub((atomic_int *)left, 1);
  return NULL;
}

static void detached_threads(void) {
  static atomic_int left;
  pthread_attr_t attributes;
  CHECK(pthread_attr_init(&attributes) == 0);
  CHECK(pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0);
  for (int i = 0; i < 8; i++) {
    pthread_t thread;
    atomic_fetch_add(&left, 1);
    CHECK(pthread_create(&thread, &attributes, detached, &left) == 0);
  }
  while (atomic_load(&left) > 0)
    sleep_ms(1);
  CHECK(pthread_attr_destroy(&attributes) == 0);
}

/* More stacks than the C library keeps: it unmaps them, and other memory comes there. */
static void *waits(void *barrier) {
  deep(40, nothing);
  pthread_barrier_wait(barrier);
  return NULL;
}

static void many_at_a_time(void) {
  enum { THREADS = 24 };
  pthread_t threads[THREADS];
  pthread_barrier_t barrier;
  char *memory[THREADS];
  CHECK(pthread_barrier_init(&barrier, NULL, THREADS + 1) == 0);
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, waits, &barrier) == 0);
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < THREADS; i++) {
    /* Some of it shared: what a child or another thread must not take for a stack. */
    int kind = i % 3 == 0 ? MAP_SHARED : MAP_PRIVATE;
    memory[i] = mmap(NULL, MIB(8), PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    CHECK(memory[i] != MAP_FAILED);
    stamp_range(memory[i], MIB(1), i + 1);
  }
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    use_memory();
    for (int i = 0; i < THREADS; i++) {
      check_range(memory[i], MIB(1), i + 1);
      stamp_range(memory[i] + MIB(1), MIB(1), i + 2);
    }
    c11();
    _exit(3);
  }
  reap(child, 3);
  for (int i = 0; i < THREADS; i++) {
    if (i % 3 == 0)
      check_range(memory[i] + MIB(1), MIB(1), i + 2);
    check_range(memory[i], MIB(1), i + 1);
    CHECK(munmap(memory[i], MIB(8)) == 0);
  }
}

static void in_child(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    /* Some of it before the child has mapped anything, some after. */
    deep(70, nothing);
    use_memory();
    deep(200, use_memory);
    signals_going_down(10);
    threads_end(NULL);
    c11();
    pid_t grandchild = fork();
    CHECK(grandchild >= 0);
    if (grandchild == 0) {
      deep(300, use_memory);
      threads_end(NULL);
      _exit(5);
    }
    reap(grandchild, 5);
    _exit(4);
  }
  reap(child, 4);
}

static void *forks(void *argument) {
  deep(50, in_child);
  return argument;
}

/* Signals all the time, wherever the threads are. */
static atomic_int stop;
static void *storm(void *targets) {
  pthread_t *threads = targets;
  for (size_t i = 0; !atomic_load(&stop); i++) {
    pthread_kill(threads[i % 2], SIGUSR1);
    usleep(300);
  }
  return NULL;
}

static void *goes_deep(void *argument) {
  for (size_t i = 0; i < rounds * 4; i++)
    deep(8 + i * 37 % 400, i % 2 ? use_memory : nothing);
  return argument;
}

static void under_signals(void) {
  pthread_t threads[2], sender;
  atomic_store(&stop, 0);
  for (int i = 0; i < 2; i++)
    CHECK(pthread_create(&threads[i], NULL, goes_deep, NULL) == 0);
  CHECK(pthread_create(&sender, NULL, storm, threads) == 0);
  sleep_ms(50);
  atomic_store(&stop, 1);
  CHECK(pthread_join(sender, NULL) == 0);
  for (int i = 0; i < 2; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
}

/* The limit holds, and may be raised. */
static void limit(void) {
  struct rlimit limit;
  CHECK(getrlimit(RLIMIT_STACK, &limit) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    use_memory();
    signal(SIGSEGV, SIG_DFL);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    deep(limit.rlim_cur / PAGE + 10, nothing);
    _exit(1);
  }
  int status;
  while (waitpid(child, &status, 0) < 0)
    CHECK(errno == EINTR);
  CHECK(limit.rlim_cur == RLIM_INFINITY || (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
}

int main(int argc, char **argv) {
  rounds = argument(argc, argv, 1, 3);
  CHECK(pthread_key_create(&key, note_destroyed) == 0);
  deep(1200, use_memory);
  signals();
  for (size_t round = 0; round < rounds; round++) {
    pthread_t thread;
    threads_end(NULL);
    stacks_of_all_sizes();
    c11();
    detached_threads();
    many_at_a_time();
    in_child();
    CHECK(pthread_create(&thread, NULL, forks, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    under_signals();
  }
  limit();
  /* Three in each round, for each of the four ways that they are started. */
  CHECK(atomic_load(&destroyed) == rounds * 12);
  CHECK(atomic_load(&cleaned) <= rounds * 12 && atomic_load(&cleaned) >= rounds * 8);
  puts("stacks hold");
  return 0;
}
