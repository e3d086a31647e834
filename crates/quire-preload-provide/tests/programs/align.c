/* Maps memory of many kinds and sizes and looks which of it begins where a
 * superpage can: with the library told to align, all of it that may. */
#include "common.h"
#include <fcntl.h>

static int wanted;

static void check(const char *what, void *at, size_t length, off_t offset,
                  int may) {
  CHECK(at != MAP_FAILED);
  int congruent = ((uintptr_t)at - (uintptr_t)offset) % EXTENT == 0;
  if (wanted && may && !congruent)
    FAIL("%s begins at %p, offset %#lx", what, at, (long)offset);
  printf("%s\n", what);
  CHECK(munmap(at, length) == 0);
}

/* Maps memory at a place that is free and begins where no superpage can. The
 * library's own thread may map something there first: then at another one. */
static void *map_fixed(size_t length) {
  int anon = MAP_PRIVATE | MAP_ANONYMOUS;
  for (int attempts = 0; attempts < 10; attempts++) {
    size_t room = length + 2 * EXTENT;
    char *place = mmap(NULL, room, PROT_NONE, anon, -1, 0);
    CHECK(place != MAP_FAILED && munmap(place, room) == 0);
    char *there = mmap(place + PAGE, length, PROT_READ | PROT_WRITE,
                       anon | MAP_FIXED_NOREPLACE, -1, 0);
    if (there == MAP_FAILED && errno == EEXIST)
      continue;
    CHECK(there == place + PAGE);
    return there;
  }
  FAIL("%s", "no place stays free");
}

int main(void) {
  wanted = getenv("QUIRE_ALIGN") != NULL;
  int anon = MAP_PRIVATE | MAP_ANONYMOUS;
  int both = PROT_READ | PROT_WRITE;
  char name[] = "align.XXXXXX";
  int file = mkstemp(name);
  CHECK(file >= 0 && ftruncate(file, MIB(16)) == 0 && unlink(name) == 0);
  for (size_t length = PAGE; length <= MIB(48); length = 3 * length + PAGE) {
    int may = length >= EXTENT;
    check("memory", mmap(NULL, length, both, anon, -1, 0), length, 0, may);
    check("reserved", mmap(NULL, length, PROT_NONE, anon, -1, 0), length, 0,
          may);
    int shared = MAP_SHARED | MAP_ANONYMOUS;
    check("shared", mmap(NULL, length, both, shared, -1, 0), length, 0, may);
    off_t offset = 3 * PAGE;
    if (length < MIB(15)) {
      char *map = mmap(NULL, length, PROT_READ, MAP_PRIVATE, file, offset);
      CHECK(map != MAP_FAILED && map[length - 1] == 0);
      check("file", map, length, offset, may);
    }
    /* A hint is one, a fixed place is fixed. */
    char *place = mmap(NULL, length + 2 * EXTENT, PROT_NONE, anon, -1, 0);
    CHECK(place != MAP_FAILED && munmap(place, length + 2 * EXTENT) == 0);
    check("hint", mmap(place + PAGE, length, both, anon, -1, 0), length, 0,
          may);
    check("fixed", map_fixed(length), length, 0, 0);
  }
  CHECK_ERRNO(mmap(NULL, MIB(4), PROT_READ, MAP_PRIVATE, -1, 0), EBADF);
  CHECK_ERRNO(mmap(NULL, MIB(4), PROT_READ, 0, file, 0), EINVAL);
  CHECK_ERRNO(mmap(NULL, MIB(4), PROT_READ, MAP_PRIVATE, file, 5), EINVAL);
  CHECK_ERRNO(mmap(NULL, (size_t)-PAGE, both, anon, -1, 0), ENOMEM);
  return 0;
}
