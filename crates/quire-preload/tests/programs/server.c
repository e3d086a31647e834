/* A server maps shared memory and touches none of it; the processes that it forks fill it. It becomes superpages, for
 * all of them, and what is not full stays as it is. A child that has grown does not count as resident what others have
 * filled. Argument: anonymous, or memfd, which every process may map for itself: there it counts what each has touched. */
#include "promise.h"
#include <sys/wait.h>

enum { EXTENTS = 48, PATIENCE = 60 };

static int object(const char *how) {
  return strcmp(how, "anonymous") == 0 ? -1 : memfd_create("server", MFD_CLOEXEC);
}

/* What of the mapping superpages map in this process, and what of it is there at all. */
static size_t mapped_by_superpages(void) {
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  CHECK(file != NULL);
  char line[200];
  unsigned long kib = 0;
  while (fgets(line, sizeof line, file) != NULL)
    sscanf(line, "ShmemPmdMapped: %lu", &kib);
  CHECK(fclose(file) == 0);
  return kib << 10;
}

static size_t existing(const char *memory, size_t len) {
  static unsigned char pages[EXTENTS * EXTENT / PAGE];
  CHECK(mincore((void *)memory, len, pages) == 0);
  size_t count = 0;
  for (size_t i = 0; i < len / PAGE; i++)
    count += pages[i] & 1;
  return count;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  const char *how = argv[1];
  size_t len = EXTENTS * EXTENT;
  int fd = object(how);
  int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
  CHECK(fd < 0 || ftruncate(fd, (off_t)len) == 0);
  char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);
  CHECK(memory != MAP_FAILED);
  int makes = policy_is("adaptive");
  if (makes && (uintptr_t)memory % EXTENT != 0)
    FAIL("shared memory is at %p, where it can have no superpages", (void *)memory);
  /* All but the last extent are filled; that one has a page. */
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    for (size_t at = 0; at <= len - EXTENT; at += PAGE)
      memory[at] = (char)(at / EXTENT);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  size_t full = len - EXTENT, wanted = makes && fd < 0 ? full : 0;
  double begin = seconds();
  while (mapped_by_superpages() < wanted && seconds() < begin + PATIENCE)
    sleep_ms(20);
  /* What must not be made has time to be. */
  if (wanted == 0)
    sleep_ms(1500);
  size_t huge = mapped_by_superpages(), there = existing(memory, len);
  if (huge != wanted)
    FAIL("%zu of %zu MiB on superpages after %.1f s", huge >> 20, wanted >> 20, seconds() - begin);
  if (there != full / PAGE + 1)
    FAIL("%zu pages exist, %zu were written", there, full / PAGE + 1);
  for (size_t at = 0; at <= len - EXTENT; at += PAGE)
    CHECK(memory[at] == (char)(at / EXTENT));
  if (wanted > 0)
    NOTE("%s: on superpages %.1f s after it was filled", how, seconds() - begin);
  /* A child with a helper of its own has no more of it than it has touched. */
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    grow_up();
    sleep_ms(1500);
    CHECK(mapped_by_superpages() == 0);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  puts("server ok");
  return 0;
}
