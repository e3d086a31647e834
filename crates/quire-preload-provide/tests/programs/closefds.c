/* Descriptors belong to the program: it finds only those it was given or has
 * opened, the lowest free number is the next, and it may close, replace or
 * forbid any of them and still map, allocate and fork.
 * Argument: a stage, internally. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* Prints the open descriptors, less the one that lists them. */
static void list(const char *title, char *text, size_t size) {
  DIR *directory = opendir("/proc/self/fd");
  CHECK(directory != NULL);
  int open[1024] = {0};
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
    if (entry->d_name[0] != '.' && atoi(entry->d_name) < 1024)
      open[atoi(entry->d_name)] = 1;
    else if (entry->d_name[0] != '.')
      FAIL("%s: descriptor %s", title, entry->d_name);
  open[dirfd(directory)] = 0;
  CHECK(closedir(directory) == 0);
  size_t length = 0;
  text[0] = '\0';
  for (int fd = 0; fd < 1024; fd++)
    if (open[fd])
      length += (size_t)snprintf(text + length, size - length, " %d", fd);
}

static void expect(const char *title, const char *wanted) {
  char text[4096];
  list(title, text, sizeof text);
  if (strcmp(text, wanted) != 0)
    FAIL("%s: descriptors%s, wanted%s", title, text, wanted);
}

/* Everything that could need a descriptor behind the program's back. */
static void exercise(const char *title) {
  char *memory = map_anon(MIB(48));
  stamp_range(memory, MIB(48), 1);
  unsigned char *heap = malloc(MIB(20));
  CHECK(heap != NULL);
  memset(heap, 7, MIB(20));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check_range(memory, MIB(48), 1);
    stamp_range(memory, MIB(48), 2);
    char *fresh = map_anon(MIB(16));
    stamp_range(fresh, MIB(16), 3);
    CHECK(heap[MIB(20) - 1] == 7);
    heap[0] = 8;
    check_range(memory, MIB(48), 2);
    _exit(0);
  }
  for (size_t i = 0; i < MIB(48) / PAGE; i += 3)
    stamp(memory + i * PAGE, 1 + i);
  reap(child, 0);
  check_range(memory, MIB(48), 1);
  CHECK(heap[0] == 7);
  memory = mremap(memory, MIB(48), MIB(64), MREMAP_MAYMOVE);
  CHECK(memory != MAP_FAILED);
  check_range(memory, MIB(48), 1);
  check_zero_range(memory + MIB(48), MIB(16));
  CHECK(munmap(memory, MIB(64)) == 0);
  free(heap);
  printf("%s ok\n", title);
  fflush(stdout);
}

static int next_descriptor(void) {
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0);
  return fd;
}

int main(int argc, char **argv) {
  char given[4096], now[4096];
  list("at the start", given, sizeof given);
  if (argc > 1) { /* after an exec: nothing was carried over */
    CHECK(strcmp(given, " 0 1 2") == 0);
    exercise("after exec");
    expect("after exec", " 0 1 2");
    return 0;
  }
  printf("given:%s\n", given);
  exercise("as given");
  list("as given", now, sizeof now);
  CHECK(strcmp(given, now) == 0);

  for (int fd = 3; fd < 1024; fd++)
    close(fd);
  expect("closed", " 0 1 2");
  CHECK(next_descriptor() == 3 && next_descriptor() == 4);
  CHECK(close(3) == 0 && close(4) == 0);
  exercise("closed");
  CHECK(next_descriptor() == 3 && close(3) == 0);
  CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0);
  exercise("close_range");
  CHECK(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0);
  closefrom(3);
  exercise("closefrom");

  /* The program puts its own file at every number. */
  int null = next_descriptor();
  CHECK(null == 3);
  for (int fd = 4; fd < 512; fd++)
    CHECK(dup2(null, fd) == fd);
  exercise("replaced");
  char byte;
  for (int fd = 3; fd < 512; fd++)
    CHECK(read(fd, &byte, 1) == 0); /* still /dev/null */
  for (int fd = 3; fd < 512; fd++)
    CHECK(close(fd) == 0);

  /* Without even the standard ones. */
  int out = fcntl(1, F_DUPFD, 100), err = fcntl(2, F_DUPFD, 101);
  CHECK(out == 100 && err == 101);
  CHECK(close(0) == 0 && close(1) == 0 && close(2) == 0);
  char *memory = map_anon(MIB(32));
  stamp_range(memory, MIB(32), 4);
  pid_t child = fork();
  if (child == 0) {
    check_range(memory, MIB(32), 4);
    stamp(memory, 5);
    _exit(next_descriptor() == 0 ? 0 : 1);
  }
  int lowest[3] = {next_descriptor(), next_descriptor(), next_descriptor()};
  CHECK(dup2(err, 2) == 2 && dup2(out, 1) == 1);
  CHECK(child > 0 && lowest[0] == 0 && lowest[1] == 1 && lowest[2] == 2);
  reap(child, 0);
  CHECK_STAMP(memory, 4);
  CHECK(close(out) == 0 && close(err) == 0);
  exercise("standard ones replaced");
  expect("in the end", " 0 1 2");
  CHECK(dup2(1, 0) == 0); /* open over the exec below */
  execl("/proc/self/exe", argv[0], "again", (char *)NULL);
  FAIL("execl: %s", strerror(errno));
}
