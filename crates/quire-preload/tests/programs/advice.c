/* Advice that the program gives itself is the program's, and stands. */
#include "promise.h"
#include <sys/prctl.h>

static void no_huge(const char *what, const char *memory, size_t len) {
  struct memory found = memory_of(memory, len);
  if (found.huge > 0 || found.no_huge == 0)
    FAIL("%s: %zu MiB on superpages, %d of %zu mappings marked", what, found.huge >> 20, found.no_huge,
         found.mappings);
}

/* Memory on superpage boundaries, with a mapping of its own. */
static char *mapped(size_t len) {
  char *room = mmap(NULL, len + 2 * EXTENT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(room != MAP_FAILED);
  char *at = (char *)(((uintptr_t)room + 2 * EXTENT - 1) / EXTENT * EXTENT);
  CHECK(mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
  return at;
}

static const size_t LEN = MIB(128);

int main(void) {
  needs_advised_superpages();
  char *first = grow_up();
  char *none = mapped(LEN), *some = mapped(LEN), *huge = mapped(LEN);
  CHECK(madvise(none, LEN, MADV_NOHUGEPAGE) == 0);
  stamp_range(none, LEN, 1);
  /* The middle of what is predicted. */
  CHECK(madvise(some + LEN / 2, LEN / 4, MADV_NOHUGEPAGE) == 0);
  stamp_range(some, LEN, 1);
  CHECK(madvise(huge, LEN, MADV_HUGEPAGE) == 0);
  stamp_range(huge, LEN, 1);
  if (!policy_is("base") && huge_percent(huge, LEN) < 98)
    FAIL("memory with MADV_HUGEPAGE: %.1f %% on superpages", huge_percent(huge, LEN));
  /* Superpages that are made none of later on. */
  char *late = mapped(LEN);
  stamp_range(late, LEN, 1);
  CHECK(madvise(late, LEN, MADV_NOHUGEPAGE) == 0);
  CHECK(madvise(late, LEN, MADV_DONTNEED) == 0);
  stamp_range(late, LEN, 1);

  for (int look = 0; look < 2; look++) {
    no_huge("all of a mapping", none, LEN);
    no_huge("a part of a mapping", some + LEN / 2, LEN / 4);
    no_huge("a mapping that was used before", late, LEN);
    sleep_ms(look == 0 ? 3500 : 0);
  }
  if (has_helper() && wait_for_huge(some, LEN / 2, 95, 4) < 95)
    FAIL("what is before the part: %.1f %%", huge_percent(some, LEN / 2));

  /* Moved, it is still marked. */
  none = mremap(none, LEN, LEN + MIB(32), MREMAP_MAYMOVE);
  CHECK(none != MAP_FAILED);
  stamp_range(none + LEN, MIB(32), 1 + LEN / PAGE);
  sleep_ms(500);
  no_huge("a mapping that was moved", none, LEN + MIB(32));
  check_range(none, LEN + MIB(32), 1);
  check_range(some, LEN, 1);
  check_range(huge, LEN, 1);
  check_range(late, LEN, 1);
  check_range(first, MIB(96), 1);

  /* A block of the allocator, the pages of which are all marked. */
  char *block = malloc(LEN);
  CHECK(block != NULL);
  char *page = (char *)((uintptr_t)block / PAGE * PAGE);
  CHECK(madvise(page, LEN + PAGE, MADV_NOHUGEPAGE) == 0);
  memset(block, 1, LEN);
  block = realloc(block, LEN + MIB(64));
  CHECK(block != NULL);
  memset(block, 1, LEN + MIB(64));
  sleep_ms(100);
  no_huge("a block that was enlarged", block, LEN + MIB(64));
  puts("advice ok");
  return 0;
}
