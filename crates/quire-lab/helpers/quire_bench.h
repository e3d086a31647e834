/* Reports measurements to `quire bench`. Copy this file; it needs nothing else.
 *
 *     double start = quire_bench_now();
 *     work();
 *     quire_bench_report("time", quire_bench_now() - start, "s");
 *
 * Without `quire bench` nothing is reported. It may be used from several threads.
 */
#ifndef QUIRE_BENCH_H
#define QUIRE_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The descriptor that measurements go to, or -1. */
static inline int quire_bench_fd(void)
{
    const char *text = getenv("QUIRE_BENCH_FD");
    struct stat about;
    int fd = text && *text ? atoi(text) : -1;

    /* A program that closes descriptors may have put a file of its own there. */
    if (fd < 0 || fstat(fd, &about) != 0 || !S_ISFIFO(about.st_mode))
        return -1;
    return fd;
}

/* Reports a value. Units are such as s, ms, us, ns, bytes, KiB or 1/s; "" is none.
 * Returns 0, or -1 where nobody wants to know. */
static inline int quire_bench_report(const char *metric, double value, const char *unit)
{
    char line[256];
    int fd = quire_bench_fd();
    int length = snprintf(line, sizeof line, "quire: %s %.17g %s\n", metric, value, unit);

    if (fd < 0 || length < 0 || (size_t)length >= sizeof line)
        return -1;
    return write(fd, line, (size_t)length) == length ? 0 : -1;
}

/* How many measurements are wanted, or `otherwise` where nobody says. */
static inline long quire_bench_measurements(long otherwise)
{
    const char *text = getenv("QUIRE_BENCH_MEASUREMENTS");
    long wanted = text ? atol(text) : 0;

    return wanted > 0 ? wanted : otherwise;
}

/* Seconds on a clock that only goes forward. */
static inline double quire_bench_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
