/* Two processes, with two threads each, that use locks of the C library in shared memory.
 *
 *     sync NAME 0     makes the memory and the locks, and says so
 *     sync NAME 1     uses them with that one
 *
 * Built with C_INTERFACE, NAME is a server's address, and the memory an object that is opened there;
 * a third argument has the process keep pages of its own. */
#include "common.h"

#ifdef C_INTERFACE
#include <quire_dsm.h>
#endif

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#define THREADS 2
#define ADDS 400
#define TURNS 100

struct memory {
  pthread_barrier_t barrier;
  pthread_mutex_t plain, recursive, checks;
  pthread_cond_t changed, by_clock;
  pthread_rwlock_t readers;
  sem_t to[2];
  /* Not atomic: what the locks are for. */
  volatile uint64_t counter, twice, queue, full, first, second, is_over;
};

static struct memory *memory;
static int me;

static void meet(void) {
  int met = pthread_barrier_wait(&memory->barrier);
  CHECK(met == 0 || met == PTHREAD_BARRIER_SERIAL_THREAD);
}

static void make_mutex(pthread_mutex_t *mutex, int kind) {
  pthread_mutexattr_t attributes;
  CHECK(pthread_mutexattr_init(&attributes) == 0);
  CHECK(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  CHECK(pthread_mutexattr_settype(&attributes, kind) == 0);
  CHECK(pthread_mutex_init(mutex, &attributes) == 0);
}

static void make(void) {
  pthread_barrierattr_t barrier;
  CHECK(pthread_barrierattr_init(&barrier) == 0);
  CHECK(pthread_barrierattr_setpshared(&barrier, PTHREAD_PROCESS_SHARED) == 0);
  CHECK(pthread_barrier_init(&memory->barrier, &barrier, 0) == EINVAL);
  CHECK(pthread_barrier_init(&memory->barrier, &barrier, 2) == 0);
  make_mutex(&memory->plain, PTHREAD_MUTEX_NORMAL);
  make_mutex(&memory->recursive, PTHREAD_MUTEX_RECURSIVE);
  make_mutex(&memory->checks, PTHREAD_MUTEX_ERRORCHECK);
  pthread_condattr_t condition;
  CHECK(pthread_condattr_init(&condition) == 0);
  CHECK(pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED) == 0);
  CHECK(pthread_cond_init(&memory->changed, &condition) == 0);
  CHECK(pthread_condattr_setclock(&condition, CLOCK_MONOTONIC) == 0);
  CHECK(pthread_cond_init(&memory->by_clock, &condition) == 0);
  pthread_rwlockattr_t readers;
  CHECK(pthread_rwlockattr_init(&readers) == 0);
  CHECK(pthread_rwlockattr_setpshared(&readers, PTHREAD_PROCESS_SHARED) == 0);
  CHECK(pthread_rwlock_init(&memory->readers, &readers) == 0);
  CHECK(sem_init(&memory->to[0], 1, 0) == 0 && sem_init(&memory->to[1], 1, 0) == 0);
}

static void *add(void *nothing) {
  for (int turn = 0; turn < ADDS; turn++) {
    CHECK(pthread_mutex_lock(&memory->plain) == 0);
    memory->counter = memory->counter + 1;
    CHECK(pthread_mutex_unlock(&memory->plain) == 0);
    if (turn % 4 == 0) {
      CHECK(pthread_mutex_lock(&memory->recursive) == 0);
      CHECK(pthread_mutex_lock(&memory->recursive) == 0);
      memory->twice = memory->twice + 1;
      CHECK(pthread_mutex_unlock(&memory->recursive) == 0);
      memory->twice = memory->twice + 1;
      CHECK(pthread_mutex_unlock(&memory->recursive) == 0);
    }
  }
  return nothing;
}

static void mutexes(void) {
  pthread_t threads[THREADS];
  for (int number = 0; number < THREADS; number++)
    CHECK(pthread_create(&threads[number], NULL, add, NULL) == 0);
  for (int number = 0; number < THREADS; number++)
    CHECK(pthread_join(threads[number], NULL) == 0);
  meet();
  CHECK(memory->counter == 2 * THREADS * ADDS && memory->twice == memory->counter / 2);
  CHECK(pthread_mutex_unlock(&memory->recursive) == EPERM);
}

/* One puts numbers to a place for one of them, the other takes them. */
static void conditions(void) {
  uint64_t sum = 0;
  for (uint64_t turn = 1; turn <= TURNS; turn++) {
    CHECK(pthread_mutex_lock(&memory->plain) == 0);
    while (memory->full == (me == 0))
      CHECK(pthread_cond_wait(&memory->changed, &memory->plain) == 0);
    if (me == 0)
      memory->queue = turn;
    else
      sum += memory->queue;
    memory->full = me == 0;
    CHECK(pthread_cond_signal(&memory->changed) == 0);
    CHECK(pthread_mutex_unlock(&memory->plain) == 0);
  }
  CHECK(me == 0 || sum == TURNS * (TURNS + 1) / 2);
}

static void semaphores(void) {
  for (int turn = 0; turn < TURNS; turn++) {
    if (me == 1)
      CHECK(sem_wait(&memory->to[1]) == 0);
    memory->first = memory->first + 1;
    CHECK(memory->first == (uint64_t)(2 * turn + me + 1));
    CHECK(sem_post(&memory->to[!me]) == 0);
    if (me == 0)
      CHECK(sem_wait(&memory->to[0]) == 0);
  }
  FAILS(sem_trywait(&memory->to[me]) == -1, EAGAIN);
}

static void readers(void) {
  if (me == 0)
    memory->second = memory->first;
  meet();
  if (me == 0) {
    for (int turn = 0; turn < TURNS; turn++) {
      CHECK(pthread_rwlock_wrlock(&memory->readers) == 0);
      memory->first = memory->first + 1;
      usleep(50);
      memory->second = memory->first;
      CHECK(pthread_rwlock_unlock(&memory->readers) == 0);
    }
    CHECK(pthread_rwlock_wrlock(&memory->readers) == 0);
    memory->is_over = 1;
    CHECK(pthread_rwlock_unlock(&memory->readers) == 0);
    return;
  }
  for (int is_over = 0; !is_over;) {
    CHECK(pthread_rwlock_rdlock(&memory->readers) == 0);
    CHECK(pthread_rwlock_tryrdlock(&memory->readers) == 0);
    CHECK(pthread_rwlock_trywrlock(&memory->readers) == EBUSY);
    CHECK(pthread_rwlock_unlock(&memory->readers) == 0);
    CHECK(memory->first == memory->second);
    is_over = memory->is_over;
    CHECK(pthread_rwlock_unlock(&memory->readers) == 0);
  }
}

static struct timespec soon(clockid_t clock) {
  struct timespec time;
  CHECK(clock_gettime(clock, &time) == 0);
  time.tv_nsec += 20 * 1000 * 1000;
  time.tv_sec += time.tv_nsec / 1000000000;
  time.tv_nsec %= 1000000000;
  return time;
}

/* One has all locks, the other waits for each in vain, until a time. */
static void times(void) {
  if (me == 0) {
    CHECK(pthread_mutex_lock(&memory->plain) == 0 && pthread_mutex_lock(&memory->checks) == 0);
    CHECK(pthread_mutex_lock(&memory->checks) == EDEADLK);
    CHECK(pthread_rwlock_wrlock(&memory->readers) == 0);
  }
  meet();
  if (me == 1) {
    struct timespec never = {0, 1000000000}, time = soon(CLOCK_REALTIME);
    CHECK(pthread_mutex_timedlock(&memory->plain, &never) == EINVAL);
    CHECK(pthread_mutex_timedlock(&memory->plain, &time) == ETIMEDOUT);
    CHECK(pthread_mutex_trylock(&memory->plain) == EBUSY);
    CHECK(pthread_mutex_unlock(&memory->checks) == EPERM);
    time = soon(CLOCK_MONOTONIC);
    CHECK(pthread_mutex_clocklock(&memory->checks, CLOCK_MONOTONIC, &time) == ETIMEDOUT);
    time = soon(CLOCK_REALTIME);
    CHECK(pthread_rwlock_timedrdlock(&memory->readers, &time) == ETIMEDOUT);
    time = soon(CLOCK_MONOTONIC);
    CHECK(pthread_rwlock_clockwrlock(&memory->readers, CLOCK_MONOTONIC, &time) == ETIMEDOUT);
    time = soon(CLOCK_REALTIME);
    FAILS(sem_timedwait(&memory->to[0], &time) == -1, ETIMEDOUT);
    time = soon(CLOCK_MONOTONIC);
    FAILS(sem_clockwait(&memory->to[0], CLOCK_MONOTONIC, &time) == -1, ETIMEDOUT);
  }
  meet();
  if (me == 0) {
    CHECK(pthread_mutex_unlock(&memory->plain) == 0 && pthread_mutex_unlock(&memory->checks) == 0);
    CHECK(pthread_rwlock_unlock(&memory->readers) == 0);
  }
  meet();
  if (me == 1) {
    int waited;
    CHECK(pthread_mutex_lock(&memory->checks) == 0);
    struct timespec time = soon(CLOCK_MONOTONIC);
    while ((waited = pthread_cond_timedwait(&memory->by_clock, &memory->checks, &time)) == 0)
      continue;
    CHECK(waited == ETIMEDOUT);
    time = soon(CLOCK_REALTIME);
    pthread_cond_t *changed = &memory->changed;
    while (!(waited = pthread_cond_clockwait(changed, &memory->checks, CLOCK_REALTIME, &time)))
      continue;
    CHECK(waited == ETIMEDOUT && pthread_mutex_unlock(&memory->checks) == 0);
  }
}

static int is_cleaned;

static void clean(void *mutex) {
  is_cleaned = 1;
  CHECK(pthread_mutex_unlock(mutex) == 0);
}

static void *wait_for_ever(void *is_condition) {
  if (is_condition) {
    CHECK(pthread_mutex_lock(&memory->checks) == 0);
    pthread_cleanup_push(clean, &memory->checks);
    for (;;)
      CHECK(pthread_cond_wait(&memory->by_clock, &memory->checks) == 0);
    pthread_cleanup_pop(1);
  }
  CHECK(sem_wait(&memory->to[0]) == 0);
  return NULL;
}

static void cancellation(void) {
  for (long is_condition = 0; is_condition < 2; is_condition++) {
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, wait_for_ever, (void *)is_condition) == 0);
    usleep(20000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
  }
  CHECK(is_cleaned && pthread_mutex_lock(&memory->checks) == 0);
  CHECK(pthread_mutex_unlock(&memory->checks) == 0);
}

/* Locks of this process alone, and one of each. */
static pthread_mutex_t own_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t own_condition = PTHREAD_COND_INITIALIZER;
static int is_set;

static void *set(void *mutex) {
  for (int turn = 0; turn < TURNS; turn++) {
    CHECK(pthread_mutex_lock(mutex) == 0);
    while (is_set)
      CHECK(pthread_cond_wait(&own_condition, mutex) == 0);
    is_set = 1;
    CHECK(pthread_cond_broadcast(&own_condition) == 0 && pthread_mutex_unlock(mutex) == 0);
  }
  return NULL;
}

static void by_threads(pthread_mutex_t *mutex) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, set, mutex) == 0);
  for (int turn = 0; turn < TURNS; turn++) {
    CHECK(pthread_mutex_lock(mutex) == 0);
    while (!is_set)
      CHECK(pthread_cond_wait(&own_condition, mutex) == 0);
    is_set = 0;
    CHECK(pthread_cond_broadcast(&own_condition) == 0 && pthread_mutex_unlock(mutex) == 0);
  }
  CHECK(pthread_join(thread, NULL) == 0);
}

static atomic_int signals, is_bothered;
static pthread_t waiter;

static void on_signal(int signal) { signals += signal == SIGUSR1; }

/* Sends signals until they have ended who waits, or so many, and then lets it go on. */
static void *bother(void *most) {
  for (int i = 0; is_bothered && i < (most ? *(int *)most : 1000); i++) {
    usleep(10000);
    CHECK(pthread_kill(waiter, SIGUSR1) == 0);
  }
  if (most)
    CHECK(sem_post(&memory->to[0]) == 0);
  return NULL;
}

static void wait_with(int flags, int most, int is_timed) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
  signals = 0;
  is_bothered = 1;
  waiter = pthread_self();
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, bother, most ? &most : NULL) == 0);
  struct timespec until;
  CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
  until.tv_sec += 20;
  int waited = is_timed ? sem_timedwait(&memory->to[0], &until) : sem_wait(&memory->to[0]);
  CHECK(most ? waited == 0 : waited == -1 && errno == EINTR);
  is_bothered = 0;
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(most ? signals == most : signals > 0);
}

/* Handlers end who waits for a semaphore, unless they are to have it go on. */
static void interruption(void) {
  for (int is_timed = 0; is_timed < 2; is_timed++) {
    wait_with(0, 0, is_timed);
    wait_with(SA_RESTART, 5, is_timed);
  }
  CHECK(signal(SIGUSR1, SIG_DFL) != SIG_ERR);
}

#ifdef C_INTERFACE
static quire_dsm_object *object;

static void *memory_of(const char *name, int is_apart) {
  quire_dsm *server = (is_apart ? quire_dsm_connect_apart : quire_dsm_connect)(name, NULL);
  CHECK(server != NULL);
  CHECK(quire_dsm_create(server, "sync", sizeof *memory, NULL) == 0 || errno == EEXIST);
  object = quire_dsm_open(server, "sync", QUIRE_DSM_WRITE);
  CHECK(object != NULL);
  return quire_dsm_address(object);
}
#else
static void *memory_of(const char *name, int is_apart) {
  int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
  CHECK(!is_apart && fd >= 0 && ftruncate(fd, sizeof *memory) == 0);
  return mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}
#endif

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  me = atoi(argv[2]);
  memory = memory_of(argv[1], argc > 3);
  CHECK(memory != MAP_FAILED);
  if (me == 0) {
    pthread_mutexattr_t lends;
    CHECK(pthread_mutexattr_init(&lends) == 0);
    CHECK(pthread_mutexattr_setprotocol(&lends, PTHREAD_PRIO_INHERIT) == 0);
    CHECK(pthread_mutex_init(&memory->plain, &lends) == ENOTSUP);
    make();
    say("ready");
  }
  for (int round = 0; round < 20; round++)
    meet();
  mutexes();
  conditions();
  semaphores();
  readers();
  meet();
  times();
  meet();
  if (me == 0) {
    cancellation();
    interruption();
    by_threads(&own_mutex);
    by_threads(&memory->checks);
    CHECK(pthread_mutex_destroy(&memory->checks) == 0);
    CHECK(pthread_cond_destroy(&memory->changed) == 0);
    CHECK(pthread_mutex_lock(&memory->plain) == 0);
    CHECK(pthread_mutex_destroy(&memory->plain) == EBUSY);
  }
  meet();
  CHECK(me == 1 || pthread_barrier_destroy(&memory->barrier) == 0);
#ifdef C_INTERFACE
  CHECK(quire_dsm_close(object) == 0);
#endif
  return 0;
}
