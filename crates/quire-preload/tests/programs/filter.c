/* A filter of system calls for all threads, that kills the process on calls that the library's thread makes: the
 * program survives.  Arguments: prctl or seccomp, by which it is set; rounds; early, if it is set before the program
 * grows. */
#include "promise.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void forbid(int by_prctl) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 5, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog filter = {sizeof code / sizeof *code, code};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  if (by_prctl)
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
  else
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0);
}

static void work(int by_prctl, int round, int early) {
  if (early)
    forbid(by_prctl);
  char *memory = early ? grow(MIB(96)) : grow_up();
  /* At any moment of the thread's. */
  usleep((useconds_t)(round * 1700 % 40000));
  if (!early)
    forbid(by_prctl);
  char *more = mmap(NULL, MIB(48), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(more != MAP_FAILED);
  stamp_range(more, MIB(48), 1);
  check_range(memory, MIB(96), 1);
  check_range(more, MIB(48), 1);
  sleep_ms(200);
  syscall(SYS_exit_group, 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 3 || argc == 4);
  for (int round = 0; round < atoi(argv[2]); round++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
      work(strcmp(argv[1], "prctl") == 0, round, argc == 4);
    reap(child, 0);
  }
  puts("filter ok");
  return 0;
}
