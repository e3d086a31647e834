#!/usr/bin/env python3
"""Compares PostgreSQL under several kinds of pages, slice by slice.

Makes a database of pgbench that fits the shared buffers (2 GiB), and a copy of it
for each way. At each start, all servers are started in another order, read their
tables into the buffers, and wait until no more superpages come to be. Then short
slices of pgbench -S (read only) ask one server after the other, in another order each
time, while the others rest: what changes on the machine from second to second meets
all alike, and where the kernel happened to place memory is another matter at each
start. The way `huge_pages` uses a hugetlb pool, which is made for the script and given
back.

Prints the medians of transactions per second, and for each two ways the geometric mean
of the ratios, slice by slice, of each start and of all, with a 95 % bootstrap interval.
Needs Debian's postgresql and postgresql-contrib, root, and 4 GiB of memory and 2 GiB of
disk for each way.
"""

import argparse
import glob
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from rounds import QUIRE, Setting, interval, text, without_out

POOL = "/proc/sys/vm/nr_hugepages"
BUFFERS_MIB = 2048
# What runs before the server, and what it is told.
WAYS = {
    "4k": ([], "off"),
    "huge_pages": ([], "on"),
    "quire-reserve": ([QUIRE, "run", "--quiet", "--policy", "reserve", "--"], "try"),
    "quire-adaptive": ([QUIRE, "run", "--quiet", "--policy", "adaptive", "--"], "try"),
    "quire-eager": ([QUIRE, "run", "--quiet", "--policy", "eager", "--"], "try"),
    "quire-text": ([QUIRE, "run", "--quiet", "--policy", "reserve", "--text", "--"], "try"),
}


class Server:
    """A cluster in a directory of its own, and the server that runs on it."""

    def __init__(self, directory, way):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
        if not found:
            sys.exit("PostgreSQL is missing: apt-get install postgresql postgresql-contrib")
        self.bin = os.path.dirname(found[-1])
        self.way = way
        self.directory = os.path.join(directory, way)
        self.data = os.path.join(self.directory, "data")
        self.log = os.path.join(self.directory, "log")
        self.process = None

    def create(self, scale):
        """Makes the cluster and fills it."""
        os.mkdir(self.directory)
        shutil.chown(self.directory, "postgres", "postgres")
        self.run("initdb", "--pgdata", self.data, "--auth", "trust", "--no-sync")
        self.start()
        try:
            self.run("pgbench", "-i", "-q", "-s", str(scale), "-h", self.directory, "postgres")
            self.sql("create extension pg_prewarm")
            self.sql("vacuum freeze analyze")
        finally:
            self.stop()

    def copy(self, other):
        """Takes the cluster of another server, which does not run."""
        subprocess.run(["cp", "-a", other.directory, self.directory], check=True)

    def run(self, program, *arguments):
        command = ["runuser", "-u", "postgres", "--", os.path.join(self.bin, program)]
        done = subprocess.run([*command, *arguments], cwd=self.directory,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{program} failed: {done.stdout}")
        return done.stdout

    def start(self):
        before, huge_pages = WAYS[self.way]
        settings = {
            "shared_buffers": f"{BUFFERS_MIB}MB", "huge_pages": huge_pages,
            "unix_socket_directories": self.directory, "listen_addresses": "",
            "autovacuum": "off", "fsync": "off", "max_wal_size": "4GB",
        }
        options = [word for pair in settings.items() for word in ("-c", "=".join(pair))]
        postgres = os.path.join(self.bin, "postgres")
        self.process = subprocess.Popen(
            ["runuser", "-u", "postgres", "--", *before, postgres, "-D", self.data, *options],
            cwd=self.directory, stdout=subprocess.DEVNULL, stderr=open(self.log, "w"),
            start_new_session=True)
        ready = [os.path.join(self.bin, "pg_isready"), "-q", "-h", self.directory]
        for _ in range(300):
            if subprocess.run(ready).returncode == 0:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        with open(self.log) as log:
            sys.exit(f"{self.way}: the server did not start: {log.read()}")

    def stop(self):
        if self.process and self.process.poll() is None:
            # To the group: the server and what stands before it.
            os.killpg(self.process.pid, signal.SIGINT)
            self.process.wait()

    def sql(self, statement):
        return self.run("psql", "-h", self.directory, "-qAt", "-c", statement, "postgres")

    def warm(self):
        """Reads the tables into the buffers, and says how long that took."""
        began = time.monotonic()
        for name in ("pgbench_accounts", "pgbench_accounts_pkey"):
            self.sql(f"select pg_prewarm('{name}')")
        return time.monotonic() - began

    def measure(self, clients, seconds):
        words = ["-S", "-n", "-M", "prepared", "-c", str(clients), "-j", "1"]
        words += ["-T", str(seconds), "-h", self.directory, "postgres"]
        return float(re.search(r"tps = ([\d.]+)", self.run("pgbench", *words)).group(1))


def superpages_mib():
    """Shared memory that superpages map, of all processes, and the pool's use."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    mapped = int(fields["ShmemPmdMapped"].split()[0]) >> 10
    used = int(fields["HugePages_Total"]) - int(fields["HugePages_Free"])
    return mapped + 2 * used


def settle():
    """Waits until no superpage has come for ten seconds, and says how long it took until the last one came."""
    began = last = time.monotonic()
    most = superpages_mib()
    while time.monotonic() < last + 10:
        time.sleep(0.5)
        if superpages_mib() > most:
            most, last = superpages_mib(), time.monotonic()
    return last - began


def begin(servers, results):
    """Starts the servers, each alone, and brings them to where they can be compared."""
    order = random.sample(servers, len(servers))
    # The others would take the pool, if it were not in use.
    order.sort(key=lambda server: server.way != "huge_pages")
    for server in order:
        before = superpages_mib()
        server.start()
        results["warm_s"][server.way].append(round(server.warm(), 2))
        results["settled_s"][server.way].append(round(settle(), 1))
        server.measure(2, 1)
        results["superpages_mib"][server.way].append(superpages_mib() - before)


def compare(servers, options):
    results = {name: {way: [] for way in options.ways}
               for name in ("tps", "warm_s", "settled_s", "superpages_mib")}
    for number in range(options.starts):
        for slices in results["tps"].values():
            slices.append([])
        try:
            begin(servers, results)
            for _ in range(options.slices):
                for server in random.sample(servers, len(servers)):
                    tps = server.measure(options.clients, options.seconds)
                    results["tps"][server.way][-1].append(tps)
        finally:
            for server in servers:
                server.stop()
        for way in options.ways:
            last = {name: series[way][-1] for name, series in results.items()}
            print(f"  {number + 1} {way:14} {statistics.median(last['tps']):7.0f} /s, warm after "
                  f"{last['warm_s']} s, {last['superpages_mib']} MiB in superpages "
                  f"{last['settled_s']} s later", flush=True)
    return results


def report(tps, ways):
    for way in ways:
        print(f"{way:14} {text(interval(sum(tps[way], [])), 0)} /s")
        for other in ("4k", "huge_pages"):
            if other in tps and other != way:
                starts = [[a / b for a, b in zip(*slices)] for slices in zip(tps[way], tps[other])]
                means = ", ".join(f"{statistics.geometric_mean(start):.3f}" for start in starts)
                whole = interval(sum(starts, []), statistics.geometric_mean)
                print(f"  {text(whole)} of {other}; start by start {means}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--starts", type=int, default=6, help="starts of the servers (6)")
    parser.add_argument("--slices", type=int, default=12,
                        help="slices for each server at each start (12)")
    parser.add_argument("--seconds", type=int, default=2, help="length of a slice (2)")
    parser.add_argument("--scale", type=int, default=110, help="size of the database; 110 is 1.6 GiB (110)")
    parser.add_argument("--clients", type=int, default=2, help="clients of pgbench (2)")
    parser.add_argument("--out", metavar="DIRECTORY", help="write the samples there, as JSON")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=", ".join(WAYS))
    options = parser.parse_args()
    options.ways = options.ways or ["4k", "huge_pages", "quire-reserve", "quire-adaptive"]
    unknown = [way for way in options.ways if way not in WAYS]
    if unknown:
        sys.exit(f"no such way: {unknown[0]}: choose from {', '.join(WAYS)}")
    if os.geteuid() != 0:
        sys.exit("run this as root: it sizes the hugetlb pool and becomes postgres")
    if options.out:
        os.makedirs(options.out, exist_ok=True)
    if not os.path.exists(QUIRE):
        sys.exit("build first: cargo build --release")
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    directory = tempfile.mkdtemp(prefix="pgbench.", dir="/var/tmp")
    os.chmod(directory, 0o755)
    try:
        servers = [Server(directory, way) for way in options.ways]
        with Setting(POOL) as pool:
            if "huge_pages" in options.ways:
                pool.set(BUFFERS_MIB // 2 + 100)
            servers[0].create(options.scale)
            for server in servers[1:]:
                server.copy(servers[0])
            results = compare(servers, options)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report(results["tps"], options.ways)
    if options.out:
        with open(os.path.join(options.out, "pgbench_rounds.json"), "w") as file:
            json.dump({"options": without_out(options), **results}, file, indent=1)


if __name__ == "__main__":
    main()
