/* Memory at a known address whose pages are moved to other frames while threads
 * write to them, by themselves and through the kernel: each write must find what
 * the last one left.  Obeys lines: "grow" touches the last MiB, which is left out at
 * first; "protect" and "open" forbid and allow writes to the first MiB, "fork" and
 * "reap" make a child that has all pages as well, and wait for its end.
 * Argument: MiB. */
#include "common.h"

#include <fcntl.h>
#include <pthread.h>

#define START ((char *)0x200000000000)

static size_t pages;
static volatile int stop;

struct writer {
  pthread_t thread;
  size_t first, count;
  int by_kernel;
  uint32_t *written;
};

static void write_page(struct writer *writer, size_t n, int pipe_ends[2]) {
  uint64_t *page = (uint64_t *)(START + (writer->first + n) * PAGE);
  for (int at = 0; at < 512; at += 73)
    if (page[at] != writer->written[n])
      FAIL("page %zu holds %lu, wanted %u", n, (unsigned long)page[at], writer->written[n]);
  uint64_t next = ++writer->written[n];
  for (int at = 0; at < 512; at += 73) {
    if (!writer->by_kernel) {
      page[at] = next;
      continue;
    }
    CHECK(write(pipe_ends[1], &next, 8) == 8);
    CHECK(read(pipe_ends[0], &page[at], 8) == 8);
  }
}

static void *keep_writing(void *argument) {
  struct writer *writer = argument;
  int pipe_ends[2];
  CHECK(pipe(pipe_ends) == 0);
  for (size_t i = 0; !stop; i++)
    write_page(writer, i * 389 % writer->count, pipe_ends);
  return NULL;
}

static void start_writer(struct writer *writer, size_t first, size_t count, int by_kernel) {
  *writer = (struct writer){.first = first, .count = count, .by_kernel = by_kernel};
  writer->written = calloc(count, sizeof(uint32_t));
  CHECK(writer->written);
  CHECK(pthread_create(&writer->thread, NULL, keep_writing, writer) == 0);
}

static void obey(const char *line, size_t size) {
  static pid_t child;
  static int ends[2];
  if (strcmp(line, "grow\n") == 0) {
    stamp_range(START + size - MIB(1), MIB(1), 5);
  } else if (strcmp(line, "protect\n") == 0) {
    CHECK(mprotect(START, MIB(1), PROT_READ) == 0);
  } else if (strcmp(line, "open\n") == 0) {
    CHECK(mprotect(START, MIB(1), PROT_READ | PROT_WRITE) == 0);
  } else if (strcmp(line, "fork\n") == 0) {
    char byte;
    CHECK(pipe(ends) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      close(ends[1]);
      CHECK(read(ends[0], &byte, 1) == 0);
      check_range(START, MIB(1), 1);
      _exit(0);
    }
    close(ends[0]);
  } else {
    int status;
    CHECK(strcmp(line, "reap\n") == 0 && close(ends[1]) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
}

int main(int argc, char **argv) {
  size_t size = MIB(argument(argc, argv, 1, 16));
  pages = size / PAGE;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  CHECK(mmap(START, size, PROT_READ | PROT_WRITE, flags, -1, 0) == START);
  /* The first MiB rests, the last is not touched, the others are written. */
  stamp_range(START, MIB(1), 1);
  memset(START + MIB(1), 0, size - MIB(2));
  size_t quarter = MIB(1) / PAGE, half = (pages - 2 * quarter) / 2;
  struct writer writers[2];
  start_writer(&writers[0], quarter, half, 0);
  start_writer(&writers[1], quarter + half, half, 1);
  puts("ready");
  fflush(stdout);
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    obey(line, size);
    puts("obeyed");
    fflush(stdout);
  }
  stop = 1;
  for (int i = 0; i < 2; i++)
    CHECK(pthread_join(writers[i].thread, NULL) == 0);
  check_range(START, MIB(1), 1);
  return 0;
}
