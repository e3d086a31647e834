/* Memory that is used sparsely, touched at full speed: one page in eight at random, and one page in
 * each extent. It must take what it is, to a twentieth: what is mapped of it, and what is held
 * behind it, of which an ordinary user can give nothing back. One extent may be held besides. */
#include "common.h"

#define LENGTH MIB(512)

/* What is mapped, in bytes. */
static size_t mapped(char *start, size_t length) {
  FILE *file = fopen("/proc/self/smaps", "r");
  CHECK(file != NULL);
  char line[512];
  unsigned long from, to, size;
  size_t sum = 0;
  int inside = 0;
  while (fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
      inside = from >= (uintptr_t)start && to <= (uintptr_t)start + length;
    else if (inside && sscanf(line, "Rss: %lu kB", &size) == 1)
      sum += size << 10;
  CHECK(fclose(file) == 0);
  return sum;
}

/* What the kernel has behind it, mapped or not; asked past the library, which tells what is
 * mapped. */
static size_t held(char *start, size_t length) {
  static unsigned char in[LENGTH / PAGE];
  long result;
  register unsigned char *to asm("rdx") = in;
  asm volatile("syscall"
               : "=a"(result)
               : "0"(27L), "D"(start), "S"(length), "r"(to)
               : "rcx", "r11", "memory");
  CHECK(result == 0);
  size_t sum = 0;
  for (size_t page = 0; page < length / PAGE; page++)
    sum += (in[page] & 1) * PAGE;
  return sum;
}

static void check(const char *what, char *memory, size_t touched) {
  sleep_ms(1000);
  size_t is_mapped = mapped(memory, LENGTH), is_held = held(memory, LENGTH);
  if (is_mapped > touched + touched / 20)
    FAIL("%s: %zu KiB are mapped of %zu KiB", what, is_mapped >> 10, touched >> 10);
  if (is_held > touched + touched / 20 + EXTENT)
    FAIL("%s: %zu KiB are held for %zu KiB", what, is_held >> 10, touched >> 10);
  CHECK(munmap(memory, LENGTH) == 0);
  printf("%s ok\n", what);
}

int main(void) {
  uint64_t state = 7;
  size_t touched = 0;
  static unsigned char used[LENGTH / PAGE];
  char *memory = map_anon(LENGTH);
  for (size_t i = 0; i < LENGTH / PAGE / 8; i++) {
    size_t page = below(&state, LENGTH / PAGE);
    touched += used[page] ? 0 : PAGE;
    used[page] = 1;
    stamp(memory + page * PAGE, page + 1);
  }
  for (size_t page = 0; page < LENGTH / PAGE; page++)
    if (used[page])
      CHECK_STAMP(memory + page * PAGE, page + 1);
  check("one page in eight", memory, touched);
  memory = map_anon(LENGTH);
  for (size_t i = 0; i < LENGTH / EXTENT; i++)
    stamp(memory + i * EXTENT + i * 37 % 512 * PAGE, i + 1);
  for (size_t i = 0; i < LENGTH / EXTENT; i++)
    CHECK_STAMP(memory + i * EXTENT + i * 37 % 512 * PAGE, i + 1);
  check("one page in each extent", memory, LENGTH / EXTENT * PAGE);
  return 0;
}
