/* Signal handlers while the memory is mapped, flushed and unmapped.
 *
 *     handlers collect NAME   a thread is stopped by a signal again and again, as collectors
 *                             of garbage do it, while another one maps and unmaps memory
 *     handlers jump NAME      a handler jumps out of whatever it has interrupted
 *     handlers end NAME       flushes until it waits for long, and gets a signal to end */
#include "common.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>

#define PAGE 4096
#define SIZE (64 * PAGE)
#define ROUNDS 150

static int fd;
static atomic_long flushes;

static unsigned char *map(void) {
  unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

static void flush(void) {
  unsigned char *at = map();
  at[flushes % SIZE]++;
  CHECK(msync(at, SIZE, MS_SYNC) == 0);
  CHECK(munmap(at, SIZE) == 0);
  flushes++;
}

static void *flush_always(void *nothing) {
  for (;;)
    flush();
  return nothing;
}

static sem_t stopped;
static atomic_int world;

static void stop(int signal) {
  (void)signal;
  int now = world;
  sem_post(&stopped);
  while (world == now)
    usleep(50);
}

static void *private(void) {
  void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

static int collect(void) {
  pthread_t thread;
  void *heap[ROUNDS];
  for (int i = 0; i < ROUNDS; i++)
    heap[i] = private();
  unsigned char *other = map();
  CHECK(sem_init(&stopped, 0, 0) == 0 && signal(SIGUSR1, stop) != SIG_ERR);
  CHECK(pthread_create(&thread, NULL, flush_always, NULL) == 0);
  for (int i = 0; i < ROUNDS; i++) {
    usleep(1000);
    CHECK(pthread_kill(thread, SIGUSR1) == 0);
    while (sem_wait(&stopped) != 0)
      ;
    /* Nothing here may need what the thread has locked. */
    alarm(15);
    CHECK(munmap(heap[i], SIZE) == 0);
    void *more = private();
    CHECK(mprotect(more, PAGE, PROT_READ) == 0 && munmap(more, SIZE) == 0);
    CHECK(msync(other, SIZE, MS_SYNC) == 0);
    alarm(0);
    world++;
  }
  CHECK(flushes > 0);
  return 0;
}

static sigjmp_buf back;

static void jump(int signal) {
  (void)signal;
  siglongjmp(back, 1);
}

static int jumps(void) {
  volatile int rounds = 0;
  CHECK(signal(SIGALRM, jump) != SIG_ERR);
  unsigned char *at = map();
  if (sigsetjmp(back, 1) != 0)
    rounds++;
  while (rounds < ROUNDS) {
    ualarm(300 + 37 * rounds % 1000, 0);
    for (;;) {
      at[rounds]++;
      CHECK(msync(at, SIZE, MS_SYNC) == 0);
    }
  }
  /* Another thread, which takes the lock for itself. */
  pthread_t thread;
  CHECK(signal(SIGALRM, SIG_DFL) != SIG_ERR);
  alarm(15);
  CHECK(pthread_create(&thread, NULL, flush_always, NULL) == 0);
  while (flushes < 5)
    usleep(1000);
  return 0;
}

/* Ends the program when nothing has been flushed for a while. */
static void *end_it(void *nothing) {
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  CHECK(pthread_sigmask(SIG_BLOCK, &term, NULL) == 0);
  long before;
  do {
    before = flushes;
    sleep(1);
  } while (flushes != before);
  say("ending");
  CHECK(kill(getpid(), SIGTERM) == 0);
  return nothing;
}

static int end(void) {
  pthread_t thread;
  flush();
  CHECK(pthread_create(&thread, NULL, end_it, NULL) == 0);
  say("made");
  flush_always(NULL);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  fd = shm_open(argv[2], O_CREAT | O_RDWR, 0600);
  CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
  if (strcmp(argv[1], "collect") == 0)
    exit(collect());
  exit(strcmp(argv[1], "jump") == 0 ? jumps() : end());
}
