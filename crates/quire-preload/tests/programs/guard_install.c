/* Guard pages by MADV_GUARD_INSTALL (Linux 6.13) in private anonymous memory.
 * Report: ClickHouse/ClickHouse pull request 109734 (guard pages of fibre stacks by
 * MADV_GUARD_INSTALL, MADV_GUARD_REMOVE at teardown).
 * Build: gcc -O2 -pthread guard_install.c -o guard_install
 * Run:   quire run --policy POLICY -- ./guard_install   (exit 0 = right)
 * The kernel promises for private memory: a guard page faults, its contents are gone,
 * and after GUARD_REMOVE it reads zero. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define MIB (1UL << 20)
static sigjmp_buf out;
static void on_fault(int s) { (void)s; siglongjmp(out, 1); }
static int faults(volatile char *p, int write)
{
    if (sigsetjmp(out, 1)) return 1;
    if (write) *p = 1; else (void)*p;
    return 0;
}
int main(void)
{
    int bad = 0;
    struct sigaction a = { .sa_handler = on_fault };
    sigaction(SIGSEGV, &a, 0); sigaction(SIGBUS, &a, 0);
    size_t len = 64 * MIB;
    char *m = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return 2;
    /* the first half is filled before the guards, the second after */
    memset(m, 7, len / 2);
    sleep(1);
    int guards = 0;
    for (size_t at = 300 * 1024UL & ~4095UL; at + 4096 < len; at += 320 * 1024) {
        if (madvise(m + at, 4096, 102)) { puts("the kernel has no guards"); return 77; }
        guards++;
    }
    for (size_t i = 0; i < len; i += 4096)            /* fill all but the guards */
        if (i < 300 * 1024 || (i - 300 * 1024) % (320 * 1024)) memset(m + i, 9, 4096);
    for (int round = 0; round < 4; round++) {          /* time for promotions */
        int open_r = 0, open_w = 0;
        for (size_t at = 300 * 1024UL; at + 4096 < len; at += 320 * 1024) {
            open_r += !faults(m + at, 0);
            open_w += !faults(m + at, 1);
        }
        if (open_r || open_w) {
            printf("round %d: of %d guards %d can be read, %d written\n", round, guards, open_r, open_w);
            bad |= 1; break;
        }
        sleep(1);
    }
    int stale = 0, other = 0;
    for (size_t at = 300 * 1024UL; at + 4096 < len; at += 320 * 1024) {
        if (madvise(m + at, 4096, 103)) { perror("MADV_GUARD_REMOVE"); bad |= 2; }
        for (int i = 0; i < 4096; i++) if (m[at + i]) { stale++; break; }
    }
    if (stale) { printf("after GUARD_REMOVE %d of %d pages hold old contents, not zeros\n", stale, guards); bad |= 4; }
    for (size_t i = 0; i < len; i += 4096)
        if ((i < 300 * 1024 || (i - 300 * 1024) % (320 * 1024)) && m[i] != 9) other++;
    if (other) { printf("%d other pages changed\n", other); bad |= 8; }
    /* a child inherits guards */
    printf(bad ? "WRONG\n" : "right\n");
    return bad;
}
