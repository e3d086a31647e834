// What single things cost, one a run; prints one number, which says what it is in the comment of its function.
// costs warm MIB | map BYTES TIMES | fork TIMES | fill MIB | each-2mib MIB | eighth MIB | quarter MIB | rest GIB SECONDS [dense MIB]
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SUPERPAGE = 2 << 20 };

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static char *map(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

static long of_rollup(const char *name) {
    char line[256];
    long value = 0, kib;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)) && sscanf(line + strlen(name), " %ld", &kib) == 1)
            value = kib;
    if (file)
        fclose(file);
    return value;
}

// Microseconds for a mapping that is made, touched once and unmapped.
static double maps(size_t bytes, int times) {
    double began = now(CLOCK_MONOTONIC);
    for (int i = 0; i < times; i++) {
        char *at = map(bytes);
        *(volatile char *)at = 1;
        munmap(at, bytes);
    }
    return (now(CLOCK_MONOTONIC) - began) * 1e6 / times;
}

// Microseconds for a fork of a process of 64 MiB, whose child ends at once.
static double forks(int times) {
    size_t bytes = 64 << 20;
    memset(map(bytes), 1, bytes);
    sleep(3);
    double began = now(CLOCK_MONOTONIC);
    for (int i = 0; i < times; i++) {
        pid_t child = fork();
        if (!child)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    return (now(CLOCK_MONOTONIC) - began) * 1e6 / times;
}

// Touches memory on superpages, so that the host of a virtual machine has given what is used next.
static void warm(size_t bytes) {
    char *at = map(bytes);
    madvise(at, bytes, MADV_HUGEPAGE);
    memset(at, 1, bytes);
}

// Seconds to fill memory; processor seconds and MiB on superpages follow.
static void fill(size_t bytes) {
    char *at = map(bytes);
    double began = now(CLOCK_MONOTONIC), used = now(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < bytes; i += PAGE)
        memset(at + i, 1, PAGE);
    double took = now(CLOCK_MONOTONIC) - began;
    printf("%.4f %.4f %ld\n", took, now(CLOCK_PROCESS_CPUTIME_ID) - used, of_rollup("AnonHugePages:") >> 10);
}

// MiB that are resident three seconds after memory was used sparsely.
static double sparse(size_t bytes, size_t dense, size_t apart, int random) {
    char *at = map(bytes);
    uint64_t state = 88172645463325252ull;
    for (size_t i = 0; i < dense; i += PAGE)
        at[i] = 1;
    size_t pages = (bytes - dense) / apart;
    for (size_t i = 0; i < pages; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        size_t place = random ? state % ((bytes - dense) / PAGE) * PAGE : i * apart;
        at[dense + place] = 1;
    }
    sleep(3);
    return of_rollup("Rss:") / 1024.0;
}

// Thousandths of a processor that the process uses while it does nothing.
static double rest(size_t bytes, int seconds, size_t dense) {
    char *at = map(bytes);
    memset(at, 1, dense);
    for (size_t i = dense; i < bytes; i += 16 * SUPERPAGE)
        at[i] = 1;
    sleep(12);
    double began = now(CLOCK_PROCESS_CPUTIME_ID);
    sleep(seconds);
    return (now(CLOCK_PROCESS_CPUTIME_ID) - began) * 1e3 / seconds;
}

int main(int count, char **arguments) {
    const char *what = count > 2 ? arguments[1] : "";
    size_t size = count > 2 ? strtoull(arguments[2], NULL, 0) : 0, mib = size << 20;
    // So much is asked for that Quire's thread is there.
    char *grown = map(128 << 20);
    for (int i = 0; i < 64; i++)
        grown[(size_t)i * SUPERPAGE] = 0;
    if (!strcmp(what, "warm"))
        warm(mib);
    else if (!strcmp(what, "map"))
        printf("%.3f\n", maps(size, atoi(arguments[3])));
    else if (!strcmp(what, "fork"))
        printf("%.1f\n", forks(size));
    else if (!strcmp(what, "fill"))
        fill(mib);
    else if (!strcmp(what, "each-2mib"))
        printf("%.1f\n", sparse(mib, 0, SUPERPAGE, 0));
    else if (!strcmp(what, "eighth"))
        printf("%.1f\n", sparse(mib, 0, 8 * PAGE, 1));
    else if (!strcmp(what, "quarter"))
        printf("%.1f\n", sparse(mib, mib / 4, 8 * PAGE, 1));
    else if (!strcmp(what, "rest"))
        printf("%.3f\n", rest(size << 30, atoi(arguments[3]), count > 4 ? strtoull(arguments[4], NULL, 0) << 20 : 0));
    else
        return 2;
    return 0;
}
