/* Guards of MADV_GUARD_INSTALL stay across fork, mremap, mprotect and promotion.
 * Report: ClickHouse/ClickHouse pull request 109734 (stacks of fibres in one pool; the program forks, too).
 * Build: gcc -O2 guard_fork.c -o guard_fork
 * Run:   quire run --policy POLICY -- ./guard_fork   (exit 0 = right) */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define MIB (1UL << 20)
static sigjmp_buf out;
static void on_fault(int s) { (void)s; siglongjmp(out, 1); }
static int faults(volatile char *p) { if (sigsetjmp(out, 1)) return 1; *p = 1; return 0; }
static size_t len = 64 * MIB;
static int open_guards(char *m) { int n = 0; for (size_t at = 3 * 4096; at < len; at += 300 * 4096) n += !faults(m + at); return n; }
int main(void)
{
    int bad = 0, n;
    struct sigaction a = { .sa_handler = on_fault }; sigaction(SIGSEGV, &a, 0); sigaction(SIGBUS, &a, 0);
    char *m = mmap(0, len, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); memset(m, 5, len); usleep(400000);
    for (size_t at = 3 * 4096; at < len; at += 300 * 4096) if (madvise(m + at, 4096, 102)) { puts("the kernel has no guards"); return 77; }
    if ((n = open_guards(m))) { printf("at once: %d guards are open\n", n); bad = 1; }
    for (int k = 0; k < 3; k++) {
        pid_t p = fork();
        if (!p) { int c = open_guards(m); for (size_t i = 0; i < len; i += 4096) if ((i / 4096) % 300 != 3 && m[i] != 5) _exit(200); _exit(c > 100 ? 100 : c); }
        for (size_t i = 0; i < len; i += 8 * 4096) if ((i / 4096) % 300 != 3) m[i] = 5;
        int st; waitpid(p, &st, 0); if (st) { printf("child %d: %d guards are open (status %x)\n", k, WEXITSTATUS(st), st); bad = 1; }
        if ((n = open_guards(m))) { printf("parent after fork %d: %d guards are open\n", k, n); bad = 1; break; }
        sleep(2);
        if ((n = open_guards(m))) { printf("parent 2 s after fork %d: %d guards are open\n", k, n); bad = 1; break; }
    }
    mprotect(m, len, PROT_READ); mprotect(m, len, PROT_READ | PROT_WRITE); sleep(1);
    if ((n = open_guards(m))) { printf("after mprotect: %d guards are open\n", n); bad = 1; }
    m = mremap(m, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, mmap(0, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)); sleep(1);
    if ((n = open_guards(m))) { printf("after mremap: %d guards are open\n", n); bad = 1; }
    puts(bad ? "WRONG" : "right"); return bad;
}
