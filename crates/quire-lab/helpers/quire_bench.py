"""Reports measurements to `quire bench`. Copy this file; it needs nothing else.

    import quire_bench
    for _ in range(quire_bench.measurements(10)):
        with quire_bench.measured("time"):
            work()

Without `quire bench` nothing is reported.
"""

import contextlib
import os
import stat
import time


def _descriptor():
    try:
        fd = int(os.environ["QUIRE_BENCH_FD"])
        # A program that closes descriptors may have put a file of its own there.
        return fd if stat.S_ISFIFO(os.fstat(fd).st_mode) else None
    except (KeyError, ValueError, OSError):
        return None


def report(metric, value, unit=""):
    """Reports a value. Units are such as s, ms, us, ns, bytes, KiB or 1/s."""
    fd = _descriptor()
    if fd is not None:
        os.write(fd, f"quire: {metric} {float(value)!r} {unit}\n".encode())


def measurements(otherwise):
    """How many measurements are wanted, or `otherwise` where nobody says."""
    try:
        return max(1, int(os.environ["QUIRE_BENCH_MEASUREMENTS"]))
    except (KeyError, ValueError):
        return otherwise


@contextlib.contextmanager
def measured(metric):
    """Reports how long the block took, unless it raises."""
    start = time.perf_counter()
    yield
    report(metric, time.perf_counter() - start, "s")
