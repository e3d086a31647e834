/* Every way of making a child, hundreds of times, while threads write.
 * The child must see the memory as it was at the fork and the parent must
 * never see a child's write.  Three kinds of pages: quiet ones (main stamps
 * some anew before each fork), lockstep pages (a thread raises a number on one
 * page and then on another, so a snapshot holds n,n or n+1,n) and malloc'ed
 * objects.  Arguments: MiB mapped, MiB malloc'ed, children. */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>

#define WRITERS 2
#define PAIRS 64
#define OBJECT ((size_t)40000)

extern char **environ;

static char *quiet, *busy;
static size_t quiet_pages;
static uint64_t *tags; /* what each quiet page holds */
static unsigned char **objects;
static size_t object_count;
static atomic_int stop;
static uint64_t round_number;
static pid_t _Fork_(void);

static pid_t _Fork_(void) { return _Fork(); }

/* The two halves of a pair lie in different superpages. */
static volatile uint64_t *half(unsigned writer, unsigned pair, unsigned which) {
  return (volatile uint64_t *)(busy + which * MIB(8) + writer * MIB(4) + pair * (size_t)53248);
}

static void *write_pairs(void *argument) {
  unsigned writer = (unsigned)(uintptr_t)argument;
  for (uint64_t n = 1; !atomic_load_explicit(&stop, memory_order_relaxed); n++) {
    for (unsigned pair = 0; pair < PAIRS; pair++) {
      *half(writer, pair, 0) = n;
      atomic_signal_fence(memory_order_seq_cst);
      *half(writer, pair, 1) = n;
    }
    if (n % 64 == 0)
      sched_yield();
  }
  return NULL;
}

/* Quiet pages and objects; `step` 1 checks all, a larger one a sample. */
static void verify_quiet(size_t step) {
  size_t from = round_number % step;
  for (size_t i = from; i < quiet_pages; i += step)
    CHECK_STAMP(quiet + i * PAGE, tags[i]);
  for (size_t i = from; i < object_count; i += step) {
    unsigned char value = (unsigned char)(i * 7 + 1);
    const unsigned char *o = objects[i];
    if (o[0] != value || o[OBJECT / 2] != value || o[OBJECT - 1] != value)
      FAIL("object %zu at %p: %#x %#x %#x, wanted %#x", i, (const void *)o, o[0], o[OBJECT / 2],
           o[OBJECT - 1], value);
  }
}

/* In a child nothing runs but the caller, so the pairs stand still. */
static void verify_snapshot(size_t step) {
  verify_quiet(step);
  for (unsigned writer = 0; writer < WRITERS; writer++) {
    uint64_t first = *half(writer, 0, 0);
    unsigned steps = 0;
    for (unsigned pair = 0; pair < PAIRS; pair++) {
      uint64_t a = *half(writer, pair, 0), b = *half(writer, pair, 1);
      if (a != b && a != b + 1)
        FAIL("writer %u, pair %u: snapshot holds %llu and %llu", writer, pair,
             (unsigned long long)a, (unsigned long long)b);
      if (a != first && a + 1 != first)
        FAIL("writer %u, pair %u: %llu though pair 0 holds %llu", writer, pair,
             (unsigned long long)a, (unsigned long long)first);
      steps += a != b;
    }
    if (steps > 1)
      FAIL("writer %u: %u pairs are half written", writer, steps);
  }
}

static void scribble(uint64_t seed) {
  for (size_t i = 0; i < quiet_pages; i += 1 + below(&seed, 64)) {
    stamp(quiet + i * PAGE, ~seed);
    CHECK_STAMP(quiet + i * PAGE, ~seed);
  }
  for (size_t i = 0; i < object_count; i += 5) {
    memset(objects[i], 0xee, OBJECT);
    CHECK(objects[i][OBJECT - 1] == 0xee);
  }
  for (unsigned writer = 0; writer < WRITERS; writer++)
    for (unsigned pair = 0; pair < PAIRS; pair++) {
      *half(writer, pair, 0) = UINT64_MAX;
      *half(writer, pair, 1) = 5;
    }
}

static int clone_body(void *argument) {
  (void)argument;
  verify_snapshot(8);
  scribble(77);
  _exit(7);
}

static void child_of(pid_t (*make)(void), unsigned kind) {
  pid_t child = make();
  CHECK(child >= 0);
  if (child != 0) {
    if (kind == 3) /* the parent reads while the child writes */
      verify_quiet(16);
    reap(child, kind == 4 ? 0 : (int)kind);
    return;
  }
  switch (kind) {
  case 0: /* ends at once */
    break;
  case 1: /* sees everything */
    verify_snapshot(1);
    break;
  case 2: /* writes first, then still sees the rest */
    stamp(quiet, 99);
    CHECK_STAMP(quiet, 99);
    stamp(quiet, tags[0]);
    verify_snapshot(4);
    break;
  case 3:
    verify_snapshot(8);
    scribble(round_number);
    break;
  case 4:
    execl("/bin/true", "true", (char *)NULL);
    FAIL("execl: %s", strerror(errno));
  case 5: { /* grandchildren, one before and one after a write */
    pid_t grandchild = make();
    CHECK(grandchild >= 0);
    if (grandchild == 0) {
      verify_snapshot(4);
      scribble(3);
      _exit(50);
    }
    verify_snapshot(8);
    stamp(quiet + PAGE * 5, 1234);
    pid_t second = make();
    CHECK(second >= 0);
    if (second == 0) {
      CHECK_STAMP(quiet + PAGE * 5, 1234);
      stamp(quiet + PAGE * 5, tags[5]);
      verify_snapshot(8);
      _exit(51);
    }
    reap(grandchild, 50);
    reap(second, 51);
    CHECK_STAMP(quiet + PAGE * 5, 1234);
    break;
  }
  }
  _exit((int)kind);
}

static void spawn_true(void) {
  char *arguments[] = {"true", NULL};
  pid_t child;
  CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
  reap(child, 0);
}

static void clone_child(void) {
  static char used[65536] __attribute__((aligned(16)));
  /* The C library writes to the stack before it forks: the first touch of this one. */
  char *fresh = mmap(NULL, sizeof used, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(fresh != MAP_FAILED);
  char *stacks[] = {used, fresh};
  for (int i = 0; i < 2; i++) {
    pid_t child = clone(clone_body, stacks[i] + sizeof used, SIGCHLD, NULL);
    CHECK(child > 0);
    reap(child, 7);
  }
  CHECK(munmap(fresh, sizeof used) == 0);
}

static void vfork_child(int run) {
  pid_t child = vfork();
  CHECK(child >= 0);
  if (child == 0) {
    if (run)
      execl("/bin/true", "true", (char *)NULL);
    _exit(run ? 1 : 9);
  }
  reap(child, run ? 0 : 9);
}

/* The grandchild outlives its parent and reports through a pipe. */
static void daemon_child(void) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(setsid() > 0);
    pid_t grandchild = fork();
    CHECK(grandchild >= 0);
    if (grandchild != 0)
      _exit(0);
    while (getppid() == getpgrp()) /* until the session leader is gone */
      sleep_ms(1);
    verify_snapshot(4);
    scribble(11);
    CHECK(write(ends[1], "d", 1) == 1);
    _exit(0);
  }
  CHECK(close(ends[1]) == 0);
  reap(child, 0);
  char answer = 0;
  CHECK(read(ends[0], &answer, 1) == 1 && answer == 'd');
  CHECK(close(ends[0]) == 0);
}

static void shell_children(void) {
  CHECK(system("exit 3") >> 8 == 3);
  FILE *pipe = popen("echo through a pipe", "r");
  CHECK(pipe != NULL);
  char line[64] = "";
  CHECK(fgets(line, sizeof line, pipe) != NULL);
  CHECK(strcmp(line, "through a pipe\n") == 0);
  CHECK(pclose(pipe) == 0);
}

int main(int argc, char **argv) {
  size_t quiet_size = MIB(argument(argc, argv, 1, 64));
  size_t malloc_size = MIB(argument(argc, argv, 2, 64));
  uint64_t children = argument(argc, argv, 3, 200);
  uint64_t state = 42;
  quiet_pages = quiet_size / PAGE;
  quiet = map_anon(quiet_size);
  busy = map_anon(MIB(16));
  object_count = malloc_size / OBJECT;
  tags = malloc(quiet_pages * sizeof *tags);
  objects = malloc(object_count * sizeof *objects);
  CHECK(tags != NULL && objects != NULL);
  for (size_t i = 0; i < quiet_pages; i++) {
    tags[i] = i + 1;
    stamp(quiet + i * PAGE, tags[i]);
  }
  for (size_t i = 0; i < object_count; i++) {
    CHECK((objects[i] = malloc(OBJECT)) != NULL);
    memset(objects[i], (int)(i * 7 + 1) & 0xff, OBJECT);
  }
  pthread_t writers[WRITERS];
  for (unsigned i = 0; i < WRITERS; i++)
    CHECK(pthread_create(&writers[i], NULL, write_pairs, (void *)(uintptr_t)i) == 0);

  for (round_number = 0; round_number < children; round_number++) {
    for (unsigned i = 0; i < 50; i++) {
      size_t page = below(&state, quiet_pages);
      tags[page] = next_random(&state);
      stamp(quiet + page * PAGE, tags[page]);
    }
    switch (round_number % 14) {
    case 0 ... 5:
      child_of(fork, (unsigned)(round_number % 14));
      break;
    case 6:
      child_of(_Fork_, 1);
      break;
    case 7:
      child_of(_Fork_, 5);
      break;
    case 8:
      vfork_child(0);
      break;
    case 9:
      vfork_child(1);
      break;
    case 10:
      spawn_true();
      break;
    case 11:
      clone_child();
      break;
    case 12:
      daemon_child();
      break;
    default:
      shell_children();
    }
    verify_quiet(32);
  }
  atomic_store(&stop, 1);
  for (unsigned i = 0; i < WRITERS; i++)
    CHECK(pthread_join(writers[i], NULL) == 0);
  verify_snapshot(1);
  printf("%llu children ok\n", (unsigned long long)children);
  return 0;
}
