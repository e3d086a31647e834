/* A program that asks for userfaultfd serves its own memory: the library's thread ends, and does not come back. */
#include "promise.h"
#include <linux/userfaultfd.h>
#include <sys/syscall.h>

int main(void) {
  char *memory = grow_up();
  int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
  if (fd < 0)
    CANNOT("no userfaultfd: %s", strerror(errno));
  CHECK(!has_helper() || wait_for_helper(0, 2));
  char *more = grow(MIB(128));
  sleep_ms(1000);
  CHECK(helper() == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    grow(MIB(128));
    sleep_ms(300);
    CHECK(helper() == 0);
    _exit(0);
  }
  reap(child, 0);
  check_range(memory, MIB(96), 1);
  check_range(more, MIB(128), 1);
  puts("left alone ok");
  return 0;
}
