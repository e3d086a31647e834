/* A program with almost as many mappings as the kernel allows: nothing fails that would not without the library. */
#include "promise.h"

int main(void) {
  char text[50];
  read_text("/proc/sys/vm/max_map_count", text, sizeof text);
  size_t count = strtoul(text, NULL, 10);
  if (count < 10000 || count > 1000000)
    CANNOT("%zu mappings are allowed", count);
  char *dense = map_anon(MIB(512));
  for (size_t at = 0; at < MIB(512); at += EXTENT)
    stamp_range(dense + at, EXTENT, 1 + at / PAGE);
  /* What is measured is looks, not copies. */
  if (policy_is("adaptive"))
    wait_for_huge(dense, MIB(512), 99, 15);
  /* Mappings of one page, two at a time. */
  size_t pages = count - 2000;
  char *space = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(space != MAP_FAILED);
  for (size_t page = 1; page < pages; page += 2)
    CHECK(mprotect(space + page * PAGE, PAGE, PROT_READ) == 0);
  double begin = seconds();
  double used = has_helper() ? processor_time(helper()) : 0;
  for (int round = 0; round < 400; round++) {
    char *memory = grow(MIB(4));
    CHECK(mprotect(memory + PAGE, PAGE, PROT_READ) == 0 && munmap(memory, MIB(4)) == 0);
    char *block = malloc(MIB(1));
    CHECK(block != NULL);
    free(block);
  }
  double took = seconds() - begin;
  double share = has_helper() ? (processor_time(helper()) - used) / took * 100 : 0;
  NOTE("%.2f s with %zu mappings, %.1f %% of a processor for the helper", took, pages, share);
  /* 1.5 % for looks, which may have saved up what they earn in 2 s. */
  if (share > 2 + 5 / took)
    FAIL("the helper takes %.1f %% of a processor while the program maps and unmaps", share);
  sleep_ms(1500);
  dense = mremap(dense, MIB(512), MIB(640), MREMAP_MAYMOVE);
  CHECK(dense != MAP_FAILED);
  stamp_range(dense + MIB(512), MIB(128), 1 + MIB(512) / PAGE);
  check_range(dense, MIB(640), 1);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check_range(dense, MIB(640), 1);
    _exit(0);
  }
  reap(child, 0);
  puts("many ok");
  return 0;
}
