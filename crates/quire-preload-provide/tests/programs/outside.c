/* Looks at and changes the memory of another process from outside, by each of the ways
 * that there are.  Says what a debugger gets for pages that nobody touched.
 * Arguments: the process, where its touched pages are (start, end), and where pages
 * are that nobody touched. */
#include "common.h"
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

static pid_t pid;

static uint64_t *second_word(uintptr_t memory, size_t page) {
  return (uint64_t *)(memory + page * PAGE) + 1;
}

/* Every fourth page from the first on gets its number. */
static void write_numbers(uintptr_t memory, size_t pages) {
  for (size_t page = 0; page < pages; page += 4) {
    uint64_t number = page;
    struct iovec near = {&number, sizeof number}, far = {second_word(memory, page), sizeof number};
    CHECK(process_vm_writev(pid, &near, 1, &far, 1, 0) == sizeof number);
  }
}

static void read_all(uintptr_t memory, size_t pages, uint64_t tag) {
  static char page[4096];
  for (size_t i = 0; i < pages; i++) {
    struct iovec near = {page, PAGE}, far = {(void *)(memory + i * PAGE), PAGE};
    CHECK(process_vm_readv(pid, &near, 1, &far, 1, 0) == (ssize_t)PAGE);
    CHECK_STAMP(page, tag == 0 ? 0 : tag + i);
  }
}

/* As a debugger does: by the file, and word by word with the process stopped. */
static void debug(uintptr_t touched, uintptr_t fresh, size_t fresh_pages) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
  int file = open(path, O_RDWR);
  CHECK(file >= 0);
  uint64_t word = 0, number = 4;
  off_t at = (off_t)(uintptr_t)second_word(touched, 4);
  CHECK(pread(file, &word, sizeof word, at) == sizeof word && word == 4);
  CHECK(pwrite(file, &number, sizeof number, at) == sizeof number);
  CHECK(ptrace(PTRACE_ATTACH, pid, NULL, NULL) == 0 && waitpid(pid, NULL, 0) == pid);
  errno = 0;
  CHECK(ptrace(PTRACE_PEEKDATA, pid, second_word(touched, 8), NULL) == 8 && errno == 0);
  CHECK(ptrace(PTRACE_POKEDATA, pid, second_word(touched, 8), 8L) == 0);
  uintptr_t last = fresh + (fresh_pages - 1) * PAGE;
  errno = 0;
  long peeked = ptrace(PTRACE_PEEKDATA, pid, last, NULL);
  printf("peek %ld %s\n", peeked, strerror(errno));
  errno = 0;
  long poked = ptrace(PTRACE_POKEDATA, pid, last - 4 * PAGE, 0L);
  printf("poke %ld %s\n", poked, strerror(errno));
  CHECK(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0 && close(file) == 0);
}

int main(int argc, char **argv) {
  pid = (pid_t)argument(argc, argv, 1, 0);
  uintptr_t touched = argument(argc, argv, 2, 0), end = argument(argc, argv, 3, 0);
  uintptr_t fresh = argument(argc, argv, 4, 0), fresh_end = argument(argc, argv, 5, 0);
  size_t pages = (fresh_end - fresh) / PAGE;
  read_all(touched, (end - touched) / PAGE, 100);
  read_all(fresh, pages / 2, 0);
  write_numbers(touched, (end - touched) / PAGE);
  write_numbers(fresh, pages);
  debug(touched, fresh, pages);
  return 0;
}
