#!/usr/bin/env python3
"""Compares PostgreSQL under several kinds of pages, round by round.

Makes a database of pgbench that fits the shared buffers (2 GiB). In each round it
starts the server in each way, in another order each round, reads the tables into
the buffers, waits until no more superpages come to be, and runs pgbench -S (read
only). So what changes from minute to minute on the machine cancels out in the ratio
of two ways in the same round. The way
`huge_pages` uses a hugetlb pool, which is made for the script and given back.
Prints medians of transactions per second and of ratios, with 95 % bootstrap
intervals. Needs Debian's postgresql and postgresql-contrib, root, and 4 GiB.
"""

import argparse
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from rounds import QUIRE, Setting, interval, ratios, text, without_out

POOL = "/proc/sys/vm/nr_hugepages"
BUFFERS_MIB = 2048
# What runs before the server, and what it is told.
WAYS = {
    "4k": ([], "off"),
    "huge_pages": ([], "on"),
    "quire-reserve": ([QUIRE, "run", "--quiet", "--policy", "reserve", "--"], "try"),
    "quire-eager": ([QUIRE, "run", "--quiet", "--policy", "eager", "--"], "try"),
    "quire-text": ([QUIRE, "run", "--quiet", "--policy", "reserve", "--text", "--"], "try"),
}


class Database:
    """A cluster in a directory of its own."""

    def __init__(self, directory):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
        if not found:
            sys.exit("PostgreSQL is missing: apt-get install postgresql postgresql-contrib")
        self.bin = os.path.dirname(found[-1])
        self.directory = directory
        self.data = os.path.join(directory, "data")
        shutil.chown(directory, "postgres", "postgres")
        self.run("initdb", "--pgdata", self.data, "--auth", "trust", "--no-sync")

    def run(self, program, *arguments):
        command = ["runuser", "-u", "postgres", "--", os.path.join(self.bin, program)]
        done = subprocess.run([*command, *arguments], cwd=self.directory,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{program} failed: {done.stdout}")
        return done.stdout

    def start(self, way):
        before, huge_pages = WAYS[way]
        settings = {
            "shared_buffers": f"{BUFFERS_MIB}MB", "huge_pages": huge_pages,
            "unix_socket_directories": self.directory, "listen_addresses": "",
            "autovacuum": "off", "fsync": "off", "max_wal_size": "4GB",
        }
        options = [word for pair in settings.items() for word in ("-c", "=".join(pair))]
        postgres = os.path.join(self.bin, "postgres")
        self.server = subprocess.Popen(
            ["runuser", "-u", "postgres", "--", *before, postgres, "-D", self.data, *options],
            cwd=self.directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        ready = [os.path.join(self.bin, "pg_isready"), "-q", "-h", self.directory]
        for _ in range(300):
            if subprocess.run(ready).returncode == 0:
                return
            if self.server.poll() is not None:
                break
            subprocess.run(["sleep", "0.1"])
        self.stop()
        sys.exit(f"{way}: the server did not start")

    def stop(self):
        if self.server.poll() is None:
            # To the group: the server and what stands before it.
            os.killpg(self.server.pid, signal.SIGINT)
            self.server.wait()

    def sql(self, statement):
        return self.run("psql", "-h", self.directory, "-qAt", "-c", statement, "postgres")

    def warm(self):
        for name in ("pgbench_accounts", "pgbench_accounts_pkey"):
            self.sql(f"select pg_prewarm('{name}')")

    def settle(self):
        """Waits until superpages are no more than a second ago, and says how long."""
        began, before = time.monotonic(), -1
        while superpages_mib() > before:
            before = superpages_mib()
            time.sleep(1)
        return time.monotonic() - began - 1

    def measure(self, options):
        words = ["-S", "-n", "-M", "prepared", "-c", str(options.clients), "-j", "1"]
        words += ["-T", str(options.seconds), "-h", self.directory, "postgres"]
        return float(re.search(r"tps = ([\d.]+)", self.run("pgbench", *words)).group(1))


def superpages_mib():
    """Shared memory that superpages map, of all processes, and the pool's use."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    mapped = int(fields["ShmemPmdMapped"].split()[0]) >> 10
    used = int(fields["HugePages_Total"]) - int(fields["HugePages_Free"])
    return mapped + 2 * used


def compare(database, options, pool):
    samples = {way: [] for way in options.ways}
    settled = {way: [] for way in options.ways}
    superpages = {}
    for _ in range(options.rounds):
        for way in random.sample(options.ways, len(options.ways)):
            pool.set(BUFFERS_MIB // 2 + 100 if way == "huge_pages" else pool.before)
            database.start(way)
            try:
                database.warm()
                settled[way].append(round(database.settle(), 1))
                samples[way].append(database.measure(options))
                superpages[way] = superpages_mib()
            finally:
                database.stop()
            print(f"  {way:14} {samples[way][-1]:9.0f} /s, {superpages[way]} MiB in superpages "
                  f"after {settled[way][-1]:.1f} s", flush=True)
    return samples, settled, superpages


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    parser.add_argument("--seconds", type=int, default=15, help="length of a run (15)")
    parser.add_argument("--scale", type=int, default=110, help="size of the database; 110 is 1.6 GiB (110)")
    parser.add_argument("--clients", type=int, default=2, help="clients of pgbench (2)")
    parser.add_argument("--out", metavar="DIRECTORY", help="write the samples there, as JSON")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=", ".join(WAYS))
    options = parser.parse_args()
    options.ways = options.ways or list(WAYS)
    unknown = [way for way in options.ways if way not in WAYS]
    if unknown:
        sys.exit(f"no such way: {unknown[0]}: choose from {', '.join(WAYS)}")
    if os.geteuid() != 0:
        sys.exit("run this as root: it sizes the hugetlb pool and becomes postgres")
    if not os.path.exists(QUIRE):
        sys.exit("build first: cargo build --release")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    directory = tempfile.mkdtemp(prefix="pgbench.", dir="/var/tmp")
    try:
        database = Database(directory)
        database.start("4k")
        try:
            database.run("pgbench", "-i", "-q", "-s", str(options.scale), "-h", directory, "postgres")
            database.sql("create extension pg_prewarm")
            database.sql("vacuum freeze analyze")
        finally:
            database.stop()
        with Setting(POOL) as pool:
            samples, settled, superpages = compare(database, options, pool)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for way in options.ways:
        line = f"{way:14} {text(interval(samples[way]), 0)} /s"
        for other in ("4k", "huge_pages"):
            if other in samples and other != way:
                line += f", {text(ratios(samples, way, other))} of {other}"
        print(line)
    if options.out:
        with open(os.path.join(options.out, "pgbench_rounds.json"), "w") as file:
            json.dump({"options": without_out(options), "tps": samples, "settled_s": settled,
                       "superpages_mib": superpages}, file, indent=1)


if __name__ == "__main__":
    main()
