/* What is touched sparsely takes no more memory than it would: one page in each superpage's room, one in eight at
 * random, or a dense quarter and then one page in each.  Arguments: each, random or quarter; MiB. */
#include "promise.h"

static void expect(const char *what, size_t found, size_t most) {
  NOTE("%s: %zu KiB resident, at most %zu", what, found >> 10, most >> 10);
  if (policy_is("adaptive") && found > most)
    FAIL("%s: %zu KiB resident, wanted at most %zu", what, found >> 10, most >> 10);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  size_t len = MIB(strtoul(argv[2], NULL, 0));
  size_t before = status_bytes("RssAnon:");
  char *memory = map_anon(len);
  size_t touched = 0;
  uint64_t state = 5;
  size_t dense = strcmp(argv[1], "quarter") == 0 ? len / 4 : 0;
  for (size_t at = 0; at < dense; at += PAGE, touched++)
    memory[at] = 1;
  for (size_t at = dense; at < len; at += strcmp(argv[1], "random") == 0 ? PAGE : EXTENT)
    if (strcmp(argv[1], "random") != 0 || below(&state, 8) == 0) {
      memory[at] = 1;
      touched++;
    }
  size_t most = touched * PAGE + touched * PAGE / 20;
  if (dense > 0)
    most = touched * PAGE / 4 * 5 + MIB(8);
  for (int look = 0; look < 2; look++) {
    expect(argv[1], memory_of(memory, len).resident, most);
    size_t all = status_bytes("RssAnon:");
    NOTE("%s: the process's private memory grew by %zu KiB", argv[1], (all - before) >> 10);
    sleep_ms(look == 0 ? 3500 : 0);
  }
  puts("scattered ok");
  return 0;
}
