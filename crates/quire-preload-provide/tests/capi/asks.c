/* Asks by quire.h for frames, says where the memory lies, and waits until its input ends,
 * so that a test can look at the frames from outside.  Argument: what to do. */
#include "../programs/common.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <quire.h>
#include <stddef.h>

#define THERE ((char *)0x210000000000)

_Static_assert(sizeof(struct quire_page) == 24, "as the library has it");
_Static_assert(sizeof(struct quire_remap) == 48, "as the library has it");
_Static_assert(sizeof(struct quire_left) == 24, "as the library has it");
_Static_assert(QUIRE_LEFT_CHANGED == 8, "as the library has it");

static char in_program[MIB(4)];

static void say(const char *what, const void *memory, size_t size) {
  printf("%s %lx %lx\n", what, (unsigned long)memory, (unsigned long)memory + size);
  fflush(stdout);
}

/* Everything is said: waits until the test has looked. */
static void rest(void) {
  char byte;
  puts("done");
  fflush(stdout);
  CHECK(read(0, &byte, 1) == 0);
}

static char *map_there(char *at, size_t size) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  char *memory = mmap(at, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  CHECK(memory == at);
  return memory;
}

static void *alloc(size_t size, const char *strategy) {
  void *memory = quire_alloc(size, strategy);
  CHECK(memory);
  return memory;
}

/* What quire.h says of pages is what the kernel says. */
static void check_map(char *memory, size_t size) {
  size_t pages = size / PAGE;
  /* The result lies in memory that nobody has touched. */
  struct quire_page *told = alloc(pages * sizeof *told, "colour");
  CHECK(quire_read_map(memory, size, told, pages) == (ssize_t)pages);
  int fd = open("/proc/self/pagemap", O_RDONLY);
  for (size_t i = 0; i < pages; i++) {
    uint64_t entry, address = (uint64_t)memory + i * PAGE;
    CHECK(pread(fd, &entry, 8, (off_t)(address / PAGE * 8)) == 8);
    int present = entry >> 63;
    uint64_t frame = entry & ((1ull << 55) - 1);
    CHECK(told[i].address == address);
    CHECK(!(told[i].flags & QUIRE_PAGE_PRESENT) == !present);
    if (told[i].flags & QUIRE_PAGE_ZERO || frame == 0)
      CHECK(told[i].frame == QUIRE_FRAME_HIDDEN && told[i].colour == QUIRE_COLOUR_UNKNOWN);
    else
      CHECK(told[i].frame == frame && told[i].colour == quire_colour_of(frame));
  }
  CHECK(close(fd) == 0 && quire_free(told, pages * sizeof *told) == 0);
}

/* Moves pages, whose contents stay. */
static void remap(char *memory, size_t size, const char *strategy) {
  struct quire_remap result;
  struct quire_left left[4];
  stamp_range(memory, size - PAGE, 77);
  CHECK(quire_remap(memory, size, strategy, &result, left, 4) == 0);
  check_range(memory, size - PAGE, 77);
  CHECK(result.moved + result.kept + result.missing + result.left == size / PAGE);
  if (result.left != 0 || result.missing > 1)
    FAIL("left %lu (%s), missing %lu", (unsigned long)result.left,
         quire_left_text(left[0].reason), (unsigned long)result.missing);
  stamp(memory + size - PAGE, 78);
}

static void in_child(char *hinted) {
  char *own = alloc(MIB(2), "modulo:6-7");
  stamp_range(own, MIB(2), 5);
  stamp_range(hinted, MIB(1), 6);
  remap(map_anon(MIB(1)), MIB(1), "colour");
  say("child modulo:6-7", own, MIB(2));
  say("child modulo:8", hinted, MIB(1));
  rest();
  check_range(own, MIB(2), 5);
  _exit(0);
}

/* All ways to ask. */
static void kinds(void) {
  printf("self %d\n", (int)getpid());
  CHECK(quire_api() == QUIRE_API);
  char *before = map_anon(MIB(4));
  stamp_range(before, MIB(2), 1);
  CHECK(quire_set_colour_bits("12,13,14,15") == 0 && quire_colours() == 16);
  CHECK(quire_start() == 0);
  char *memory = alloc(MIB(4) - 5, "colour");
  stamp_range(memory, MIB(4), 2);
  say("parent colour", memory, MIB(4));
  memory = alloc(MIB(2), "modulo:4-7");
  stamp_range(memory, MIB(2), 3);
  say("parent modulo:4-7", memory, MIB(2));
  /* What was there before: pages that were touched stay. */
  struct quire_page was[2];
  CHECK(quire_read_map(before, 2 * PAGE, was, 2) == 2);
  CHECK(quire_hint(before, MIB(4), "modulo:0-1") == 0);
  stamp_range(before + MIB(2), MIB(2), 4);
  say("parent modulo:0-1", before + MIB(2), MIB(2));
  check_range(before, MIB(2), 1);
  check_map(before, MIB(4));
  /* What comes later. */
  CHECK(quire_hint(THERE, MIB(8), "modulo:8") == 0);
  memory = map_there(THERE, MIB(2));
  stamp_range(memory, MIB(2), 5);
  say("parent modulo:8", memory, MIB(2));
  char *for_child = map_there(THERE + MIB(4), MIB(1));
  CHECK(quire_unhint(THERE + MIB(6), MIB(2)) == 0);
  /* All that comes later. */
  CHECK(quire_set_default("modulo:2-3") == 0);
  memory = map_anon(MIB(3));
  stamp_range(memory, MIB(3), 6);
  say("parent modulo:2-3", memory, MIB(3));
  /* What malloc gives has one where the library has brought its allocator along. */
  char *block = dlsym(RTLD_DEFAULT, "mallocx") != NULL ? malloc(MIB(12)) : map_anon(MIB(12));
  block = (char *)(((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
  stamp_range(block, MIB(12) - PAGE, 7);
  say("parent modulo:2-3", block, MIB(12) - PAGE);
  CHECK(quire_set_default("default") == 0);
  /* What is there already, of several kinds. */
  remap(before, MIB(2), "modulo:9-10");
  say("parent modulo:9-10", before, MIB(2));
  memory = map_anon(MIB(1) + MIB(1) / 2);
  remap(memory, MIB(1), "colour:hashed");
  remap(memory, MIB(1), "modulo:11");
  say("parent modulo:11", memory, MIB(1));
  memory = (char *)(((uintptr_t)in_program + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
  remap(memory, MIB(2), "modulo:12-13");
  say("parent modulo:12-13", memory, MIB(2));
  memory = alloc(MIB(1), "binhop");
  for (size_t i = 0; i < MIB(1) / PAGE; i++)
    stamp(memory + i * PAGE, i);
  say("parent binhop", memory, MIB(1));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0)
    in_child(for_child);
  printf("pid %d\n", (int)child);
  rest();
  reap(child, 0);
  check_range(before + MIB(2), MIB(2), 4);
  check_range(block, MIB(12) - PAGE, 7);
  CHECK(quire_free(memory, MIB(1)) == 0);
}

/* Memory of the kernel's frames, recorded. */
static void record(const char *file) {
  char *memory = map_there(THERE, MIB(8));
  stamp_range(memory, MIB(8), 1);
  CHECK(quire_set_colour_bits("12,13,14,15") == 0);
  CHECK(quire_record(memory, MIB(8), file) == MIB(8) / PAGE);
  say("parent recorded", memory, MIB(8));
  rest();
  check_range(memory, MIB(8), 1);
}

/* The same colours, or the same frames. */
static void again(const char *how, const char *file) {
  char strategy[256];
  snprintf(strategy, sizeof strategy, "%s%s", how, file);
  CHECK(quire_set_colour_bits("12,13,14,15") == 0);
  CHECK(quire_hint(THERE, MIB(8), strategy) == 0);
  char *memory = map_there(THERE, MIB(8));
  stamp_range(memory, MIB(8), 1);
  if (strcmp(how, "exact:") != 0) {
    say("parent recorded", memory, MIB(8));
    rest();
    return;
  }
  /* Frames that were not in stock may be those of other pages, which make way. */
  size_t size = MIB(512);
  char *others = alloc(size, "default");
  stamp_range(others, size, 2);
  struct quire_remap result;
  static struct quire_left left[MIB(8) / PAGE];
  CHECK(quire_remap(memory, MIB(8), strategy, &result, left, MIB(8) / PAGE) == 0);
  for (size_t i = 0; i < result.left_ranges; i++)
    printf("left %lx %lx\n", (unsigned long)left[i].address,
           (unsigned long)(left[i].address + left[i].pages * PAGE));
  say("parent recorded", memory, MIB(8));
  rest();
  check_range(memory, MIB(8), 1);
  check_range(others, size, 2);
}

static void expect(int error, const char *strategy) {
  char why[200] = "";
  CHECK_ERRNO(quire_check(strategy, why, sizeof why), error);
  if (strlen(why) < 10)
    FAIL("%s: no words", strategy);
  CHECK_ERRNO(quire_check(strategy, why, 9), error);
  CHECK(strlen(why) == 8 && quire_check(strategy, NULL, 0) == -1);
  errno = 0;
  CHECK(quire_alloc(PAGE, strategy) == NULL && errno == error);
  char *memory = map_anon(PAGE);
  CHECK_ERRNO(quire_hint(memory, PAGE, strategy), error);
  CHECK_ERRNO(quire_remap(memory, PAGE, strategy, NULL, NULL, 0), error);
  CHECK_ERRNO(quire_set_default(strategy), error);
  CHECK(munmap(memory, PAGE) == 0);
}

/* What is refused, and changes nothing. */
static void errors(void) {
  CHECK_ERRNO(quire_set_colour_bits("11"), EINVAL);
  CHECK_ERRNO(quire_set_colour_bits(NULL), EINVAL);
  CHECK(quire_set_colour_bits("12,13,14,15") == 0);
  CHECK(quire_set_colour_bits("12,13,14,15") == 0);
  CHECK_ERRNO(quire_set_colour_bits("12,13"), EBUSY);
  FILE *file = fopen("nonsense.csv", "w");
  CHECK(file && fputs("nonsense\n", file) >= 0 && fclose(file) == 0);
  expect(EINVAL, "best");
  expect(EINVAL, "");
  expect(EINVAL, "modulo:x");
  expect(EINVAL, "\xff\xfe");
  expect(EINVAL, NULL);
  expect(ERANGE, "modulo:0-16");
  expect(ENOENT, "exact:nowhere.csv");
  expect(ENOENT, "modulo:@nowhere.csv");
  expect(EBADMSG, "exact:nonsense.csv");
  expect(ENOTSUP, "./mine.so");
  CHECK(quire_check("colour", NULL, 0) == 0);
  char *memory = map_anon(4 * PAGE), *beyond = (char *)0x7ffffffff000;
  struct quire_page pages[4];
  CHECK_ERRNO(quire_hint(memory + 1, PAGE, "colour"), EINVAL);
  CHECK_ERRNO(quire_hint(memory, PAGE + 1, "colour"), EINVAL);
  CHECK_ERRNO(quire_hint(memory, 0, "colour"), EINVAL);
  CHECK_ERRNO(quire_hint(NULL, PAGE, "colour"), EINVAL);
  CHECK_ERRNO(quire_hint(beyond, 2 * PAGE, "colour"), EINVAL);
  CHECK_ERRNO(quire_hint(memory, -PAGE, "colour"), EINVAL);
  CHECK_ERRNO(quire_unhint(memory + 1, PAGE), EINVAL);
  CHECK_ERRNO(quire_remap(memory + 1, PAGE, "colour", NULL, NULL, 0), EINVAL);
  CHECK_ERRNO(quire_read_map(memory, 4 * PAGE, pages, 3), EINVAL);
  CHECK_ERRNO(quire_read_map(memory, 4 * PAGE, NULL, 4), EINVAL);
  CHECK_ERRNO(quire_read_map(memory + 1, PAGE, pages, 4), EINVAL);
  CHECK_ERRNO(quire_record(memory, PAGE, "nothing.csv"), ENODATA);
  memory[0] = 1;
  CHECK_ERRNO(quire_record(memory, PAGE, NULL), EINVAL);
  CHECK_ERRNO(quire_record(memory, PAGE, ""), ENOENT);
  CHECK_ERRNO(quire_record(memory, PAGE, "nowhere/frames.csv"), ENOENT);
  CHECK(access("nothing.csv", F_OK) == -1);
  CHECK_ERRNO(quire_free(memory + 1, PAGE), EINVAL);
  CHECK_ERRNO(quire_free(NULL, PAGE), EINVAL);
  errno = 0;
  CHECK(quire_alloc(0, "colour") == NULL && errno == EINVAL);
  errno = 0;
  CHECK(quire_alloc(SIZE_MAX, "colour") == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(quire_alloc((size_t)1 << 46, "colour") == NULL && errno == ENOMEM);
  /* What is mapped by nobody, or is a file's, is left, and no error. */
  struct quire_remap result;
  struct quire_left left[1];
  CHECK(munmap(memory + 2 * PAGE, 2 * PAGE) == 0);
  CHECK(quire_remap(memory, 4 * PAGE, "colour", &result, left, 1) == 0);
  CHECK(result.left == 2 && result.left_ranges == 1 && left[0].reason == QUIRE_LEFT_FOREIGN);
  CHECK(left[0].address == (uint64_t)memory + 2 * PAGE && left[0].pages == 2);
  for (uint32_t reason = 0; reason < 12; reason++)
    CHECK(strlen(quire_left_text(reason)) > 4);
}

/* Where the service cannot be had, memory is the kernel's and nothing is lost. */
static void refused(void) {
  char *memory = map_anon(MIB(1)), why[200];
  stamp_range(memory, MIB(1), 1);
  CHECK(quire_set_colour_bits("12,13") == 0);
  CHECK_ERRNO(quire_start(), EPERM);
  CHECK_ERRNO(quire_start(), EPERM);
  CHECK_ERRNO(quire_check("colour", why, sizeof why), EPERM);
  CHECK(strstr(why, "unprivileged_userfaultfd"));
  CHECK_ERRNO(quire_hint(memory, MIB(1), "colour"), EPERM);
  CHECK_ERRNO(quire_set_default("colour"), EPERM);
  CHECK_ERRNO(quire_remap(memory, MIB(1), "colour", NULL, NULL, 0), EPERM);
  CHECK_ERRNO(quire_record(memory, MIB(1), "frames.csv"), EPERM);
  errno = 0;
  CHECK(quire_alloc(PAGE, "colour") == NULL && errno == EPERM);
  struct quire_page page;
  CHECK(quire_read_map(memory, PAGE, &page, 1) == 1);
  CHECK(page.flags == QUIRE_PAGE_PRESENT && page.frame == QUIRE_FRAME_HIDDEN);
  check_range(memory, MIB(1), 1);
}

static volatile int stop;

static void *keep_looking(void *memory) {
  while (!stop)
    check_range(memory, MIB(2), 2);
  return NULL;
}

/* Demands the frames of pages that have no strategy.  They keep what they hold, also for
 * who looks at them meanwhile. */
static void make_way(void) {
  size_t pages = MIB(2) / PAGE;
  static struct quire_page had[MIB(2) / PAGE], got[MIB(2) / PAGE];
  CHECK(quire_set_colour_bits("12,13,14,15") == 0);
  char *memory = alloc(MIB(2), "colour"), *others = alloc(MIB(2), "default");
  stamp_range(memory, MIB(2), 1);
  stamp_range(others, MIB(2), 2);
  CHECK(quire_read_map(others, MIB(2), had, pages) == (ssize_t)pages);
  FILE *file = fopen("frames.csv", "w");
  CHECK(file && fputs("address,pages,frame\n", file) >= 0);
  for (size_t i = 0; i < pages; i++)
    fprintf(file, "%lx,1,%lx\n", (unsigned long)(memory + i * PAGE), (unsigned long)had[i].frame);
  CHECK(fclose(file) == 0);
  pthread_t looker;
  CHECK(pthread_create(&looker, NULL, keep_looking, others) == 0);
  struct quire_remap result;
  CHECK(quire_remap(memory, MIB(2), "exact:frames.csv", &result, NULL, 0) == 0);
  CHECK(quire_read_map(memory, MIB(2), got, pages) == (ssize_t)pages);
  size_t same = 0;
  for (size_t i = 0; i < pages; i++)
    same += got[i].frame == had[i].frame;
  /* The kernel may have moved some by itself. */
  if (same + 8 < pages || result.made_way + 8 < pages)
    FAIL("%zu of %zu, %lu made way", same, pages, (unsigned long)result.made_way);
  stop = 1;
  CHECK(pthread_join(looker, NULL) == 0);
  check_range(memory, MIB(2), 1);
  check_range(others, MIB(2), 2);
}

/* Asks for everything again and again, with texts and results in untouched memory. */
static void *keep_asking(void *argument) {
  static const char *const names[] = {"colour", "binhop", "modulo:1-3", "default"};
  uint64_t random = (uint64_t)argument;
  while (!stop) {
    const char *name = names[below(&random, 4)], *other = names[below(&random, 4)];
    size_t pages = 1 + below(&random, 64), size = pages * PAGE;
    char *memory = alloc(size, name);
    char *texts = alloc(PAGE, other);
    strcpy(texts, other);
    uint64_t tag = random;
    stamp_range(memory, pages / 2 * PAGE, tag);
    struct quire_page *told = alloc(pages * sizeof *told, "colour");
    struct quire_remap *result = alloc(sizeof *result, "modulo:15");
    struct quire_left *left = alloc(8 * sizeof *left, "binhop:thread");
    CHECK(quire_hint(memory, size, name) == 0);
    CHECK(quire_read_map(memory, size, told, pages) == (ssize_t)pages);
    CHECK(quire_remap(memory, size, texts, result, left, 8) == 0);
    CHECK(quire_set_default(name) == 0);
    check_range(memory, pages / 2 * PAGE, tag);
    free(malloc(below(&random, 100000)));
    if (below(&random, 16) == 0) {
      pid_t child = fork();
      CHECK(child >= 0);
      if (child == 0) {
        stamp_range(memory, size, 9);
        CHECK(quire_remap(memory, size, other, result, left, 8) == 0);
        check_range(memory, size, 9);
        _exit(0);
      }
      reap(child, 0);
      check_range(memory, pages / 2 * PAGE, tag);
    }
    CHECK(quire_unhint(memory, size) == 0);
    CHECK(quire_free(memory, size) == 0 && quire_free(texts, 1) == 0);
    CHECK(quire_free(told, pages * sizeof *told) == 0);
    CHECK(quire_free(result, sizeof *result) == 0);
    CHECK(quire_free(left, 8 * sizeof *left) == 0);
  }
  return NULL;
}

static void threads(void) {
  pthread_t all[4];
  CHECK(quire_set_colour_bits("12,13,14,15") == 0);
  for (uintptr_t i = 0; i < 4; i++)
    CHECK(pthread_create(&all[i], NULL, keep_asking, (void *)(i + 1)) == 0);
  sleep_ms(3000);
  stop = 1;
  for (int i = 0; i < 4; i++)
    CHECK(pthread_join(all[i], NULL) == 0);
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "kinds") == 0)
    kinds();
  else if (strcmp(what, "record") == 0)
    record(argv[2]);
  else if (strcmp(what, "again") == 0)
    again(argv[2], argv[3]);
  else if (strcmp(what, "errors") == 0)
    errors();
  else if (strcmp(what, "refused") == 0)
    refused();
  else if (strcmp(what, "make_way") == 0)
    make_way();
  else if (strcmp(what, "threads") == 0)
    threads();
  else
    FAIL("what?");
  return 0;
}
