/* A program that serves its own faults by userfaultfd (restored snapshots, paging libraries).
 * Reports: llnl/umap 91 (registration fails, and the program dies), firecracker-microvm/firecracker 2938,
 * checkpoint-restore/criu 2021, faasm/faabric PR 232 (write tracking).
 * Build: gcc -O2 -pthread uffd_own.c -o uffd_own
 * Run:   quire run --policy POLICY -- ./uffd_own   (exit 0 = right; 3 = EBUSY, see docs/limits.md) */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#define MIB (1UL << 20)
static int fd; static volatile long served;
static void *serve(void *x)
{
    static char page[4096]; (void)x; struct uffd_msg m; /* one thread */
    while (read(fd, &m, sizeof m) == sizeof m) {
        if (m.event != UFFD_EVENT_PAGEFAULT) continue;
        unsigned long a = m.arg.pagefault.address & ~4095UL; memset(page, 0, 4096); *(unsigned long *)page = a;
        served++; struct uffdio_copy c = { a, (unsigned long)page, 4096, 0, 0 }; if (ioctl(fd, UFFDIO_COPY, &c) && errno != EEXIST) { perror("UFFDIO_COPY"); _exit(9); }
    }
    return 0;
}
int main(void)
{
    char *w = malloc(40 * MIB); memset(w, 1, 40 * MIB);
    fd = syscall(SYS_userfaultfd, O_CLOEXEC); if (fd < 0) { printf("userfaultfd: %s\n", strerror(errno)); return 77; }
    struct uffdio_api api = { UFFD_API, 0, 0 }; if (ioctl(fd, UFFDIO_API, &api)) { puts("no userfaultfd"); return 77; }
    size_t len = 32 * MIB; char *m = mmap(0, len, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct uffdio_register r = { { (unsigned long)m, len }, UFFDIO_REGISTER_MODE_MISSING, 0 };
    if (ioctl(fd, UFFDIO_REGISTER, &r)) { printf("UFFDIO_REGISTER: %s\n", strerror(errno)); return errno == EBUSY ? 3 : 2; }
    pthread_t t; pthread_create(&t, 0, serve, 0);
    for (size_t i = 0; i < len; i += 4096) if (*(unsigned long *)(m + i) != (unsigned long)(m + i)) { printf("page %zu holds %lx\n", i >> 12, *(unsigned long *)(m + i)); return 1; }
    if (served != (long)(len >> 12)) { printf("%ld faults served, expected %zu\n", (long)served, len >> 12); return 1; }
    usleep(500000);
    for (size_t i = 0; i < len; i += 4096) if (*(unsigned long *)(m + i) != (unsigned long)(m + i)) { puts("lost later"); return 1; }
    puts("right"); return 0;
}
