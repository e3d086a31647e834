#!/usr/bin/env python3
"""Compares Redis under several memory managers, round by round.

Starts one redis-server for each, fills all of them with the same keys, and then
measures them in turn, in another order each round. So each round sees all of
them within seconds, and what changes from minute to minute on the machine cancels
out in the ratio of two servers in the same round. Prints medians of those ratios
with 95 % bootstrap intervals. Needs redis-server, redis-benchmark, root (to
choose the kernel's page sizes while a server is filled), and about 1.2 GiB of
memory for each server.
"""

import argparse
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from rounds import QUIRE, interval, text

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
VALUE = "v" * 100
BATCH = 1000

# What runs before redis-server, its environment, the kernel's setting meanwhile.
SERVERS = {
    "4k": ([], {}, "never"),
    "thp": ([], {}, "always"),
    "jemalloc-thp": ([], {"MALLOC_CONF": "thp:always"}, "madvise"),
    "mimalloc": (
        [],
        {"LD_PRELOAD": f"{LIBRARIES}/libmimalloc.so.2", "MIMALLOC_LARGE_OS_PAGES": "1"},
        "always",
    ),
    "glibc-hugetlb1": (
        [],
        {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
        "madvise",
    ),
    **{
        f"quire-{policy}": ([QUIRE, "run", "--quiet", "--policy", policy, "--"], {}, "madvise")
        for policy in ("adaptive", "eager", "reserve")
    },
}


def start(name, directory):
    """Starts a server; returns its process and its socket."""
    before, environment, _ = SERVERS[name]
    path = os.path.join(directory, f"{name}.sock")
    arguments = ["--port", "0", "--unixsocket", path, "--save", "", "--dir", directory]
    arguments += ["--appendonly", "no", "--disable-thp", "no"]
    process = subprocess.Popen(
        [*before, "redis-server", *arguments],
        env=dict(os.environ, **environment),
        stdout=subprocess.DEVNULL,
    )
    for _ in range(100):
        if os.path.exists(path):
            return process, path
        if process.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit(f"{name}: redis-server did not start")


def fill(path, keys):
    """Stores a value under every key that redis-benchmark will ask for."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    for first in range(0, keys, BATCH):
        last = min(first + BATCH, keys)
        batch = "".join(
            f"*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n$100\r\n{VALUE}\r\n"
            for key in range(first, last)
        )
        server.sendall(batch.encode())
        missing = len("+OK\r\n") * (last - first)
        while missing > 0:
            missing -= len(server.recv(1 << 16))
    server.close()


def measure(path, test, options):
    """Requests per second, and the 99.9th percentile in ms."""
    command = ["redis-benchmark", "-s", path, "-t", test, "-c", "20", "-d", "100"]
    command += ["-n", str(options.requests), "-r", str(options.keys)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = float(re.search(r"throughput summary: ([\d.]+)", text).group(1))
    steps = re.findall(r"([\d.]+)% <= ([\d.]+) milliseconds \(cum", text)
    return rate, next(float(ms) for percent, ms in steps if float(percent) >= 99.9)


def compare(options, directory):
    """Fills all servers, then measures them in turn. Returns samples by figure."""
    servers = {}
    with open(THP) as file:
        setting = re.search(r"\[(\w+)\]", file.read()).group(1)
    try:
        for name in options.servers:
            with open(THP, "w") as file:
                file.write(SERVERS[name][2])
            servers[name] = start(name, directory)
            fill(servers[name][1], options.keys)
            print(f"{name} is filled", file=sys.stderr)
        with open(THP, "w") as file:
            file.write("madvise")
        samples = {}
        for number in range(options.rounds):
            for name in random.sample(options.servers, len(options.servers)):
                for test in ("get", "set"):
                    figures = measure(servers[name][1], test, options)
                    for kind, value in zip(("1/s", "p99.9 ms"), figures):
                        figure = samples.setdefault(f"{test} {kind}", {})
                        figure.setdefault(name, []).append(value)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        return samples
    finally:
        with open(THP, "w") as file:
            file.write(setting)
        for process, _ in servers.values():
            process.terminate()
        for process, _ in servers.values():
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="rounds (20)")
    parser.add_argument("--keys", type=int, default=5_000_000, help="keys (5 million: 1 GiB)")
    parser.add_argument("--requests", type=int, default=100_000, help="per test and round")
    parser.add_argument("--json", metavar="FILE", help="write the samples there")
    parser.add_argument(
        "servers", nargs="*", metavar="SERVER", help=f"the first is compared with ({', '.join(SERVERS)})"
    )
    options = parser.parse_args()
    options.servers = options.servers or list(SERVERS)
    unknown = [name for name in options.servers if name not in SERVERS]
    if unknown:
        parser.error(f"no such server: {', '.join(unknown)}")
    if not os.access(THP, os.W_OK):
        sys.exit(f"{THP} cannot be written: run this as root")
    if not os.path.exists(QUIRE):
        sys.exit("build first: cargo build --release, cargo build --profile preload -p quire-preload")
    directory = tempfile.mkdtemp()
    try:
        samples = compare(options, directory)
    finally:
        shutil.rmtree(directory)
    first = options.servers[0]
    for figure, by_server in samples.items():
        print(figure)
        for name in options.servers:
            values = by_server[name]
            ratios = [value / other for value, other in zip(values, by_server[first])]
            median = statistics.median(values)
            print(f"  {name:15} {median:10.6g}   {text(interval(ratios))} of {first}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
