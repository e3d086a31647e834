#!/usr/bin/env python3
"""Measures the default against plain runs on real programs, in paired rounds.

The two programs of a round run at the same time, each on a processor of its own, and change places from round to
round: what the machine's other guests take hits both. So the processor time that Quire's thread uses is part of the
time that its program takes. Two rounds, one each way, make a pair. Printed are the ratios to plain, with 95 %
intervals of the mean of the logarithms (Student's t), and the peak of resident memory.

    cargo build --release -p quire-cli && cargo build --profile preload -p quire-preload
    python3 docs/results/default/rounds.py --out docs/results/default.json
    python3 docs/results/default/rounds.py --only graph,dict --variants adaptive,eager --most 10
    sudo python3 docs/results/default/rounds.py --setting always --variants always,adaptive

The pythons that have numpy and duckdb are named by --python. With `--setting always` the kernel's setting for
transparent huge pages is changed meanwhile. There the variant `always` is a plain program, and the one beside it has
huge pages where it advises them only, as under the setting `madvise`; that takes Linux 6.18.
"""

import argparse
import contextlib
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Student's t for 95 % by degrees of freedom; beyond, the normal distribution is near enough.
STUDENT = [0, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
           2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]


SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"
# PR_SET_THP_DISABLE, with PR_THP_DISABLE_EXCEPT_ADVISED.
ONLY_ADVISED = (41, 1, 2, 0, 0)


@contextlib.contextmanager
def setting(wanted):
    """Changes the kernel's setting, and puts it back."""
    with open(SETTING) as file:
        before = file.read().split("[")[1].split("]")[0]
    if wanted:
        with open(SETTING, "w") as file:
            file.write(wanted)
    try:
        yield
    finally:
        if wanted:
            with open(SETTING, "w") as file:
                file.write(before)


def only_advised():
    """Huge pages only where the program advises them, for this process and those that it starts."""
    if ctypes.CDLL(None, use_errno=True).prctl(*ONLY_ADVISED):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")


def interval(values):
    """The mean of logarithms and the half width of its 95 % interval."""
    if len(values) < 2:
        return values[0], math.inf
    freedom = len(values) - 1
    student = STUDENT[freedom] if freedom < len(STUDENT) else 1.96
    return statistics.mean(values), student * statistics.stdev(values) / len(values) ** 0.5


def workloads(options, build):
    """Commands by name."""
    subprocess.run(["gcc", "-O2", os.path.join(HERE, "graph.c"), "-o", f"{build}/graph"], check=True)
    subprocess.run(["javac", "-d", build, os.path.join(HERE, "Heap.java")], check=True)
    def script(name, *arguments):
        return [options.python, os.path.join(HERE, name), *arguments]
    java = ["java", "-Xshare:auto", "-cp", build, "Heap"]
    node = ["node", os.path.join(HERE, "heap.js")]
    sqlite = ["sqlite3", ":memory:", ".read " + os.path.join(HERE, "table.sql")]
    return {
        "graph": [f"{build}/graph", "2"],
        "numpy": script("gather.py", "8"),
        "duckdb": script("groups.py"),
        "dict": script("dict.py", "2"),
        "node": node,
        "java": java,
        "sqlite": sqlite,
        "graph-long": [f"{build}/graph", "100"],
        "node-long": [*node, "60"],
        "java-long": [*java, "200"],
        "duckdb-long": script("groups.py", "100"),
    }


def start(options, variant, command, cpu):
    """Starts a variant of a command on a processor."""
    quire = [] if variant in ("plain", "advised", "same", "always") else [options.quire, "run", "--quiet", "--policy", variant, "--"]
    whole = ["taskset", "-c", str(cpu), *quire, *command]
    if options.user is not None:
        whole = ["setpriv", f"--reuid={options.user}", f"--regid={options.user}", "--clear-groups", *whole]
    return subprocess.Popen(whole, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", env={**os.environ, "HOME": "/tmp"},
                            preexec_fn=only_advised if variant == "advised" else None)


def together(options, variant, command, swapped):
    """One round: seconds, processor seconds and peak memory in KiB of plain and of the variant."""
    began = time.monotonic()
    programs = {}
    for index, name in enumerate(("advised" if variant == "always" else "plain", variant)):
        program = start(options, name, command, index ^ swapped)
        programs[program.pid] = (index, program)
    results = [None, None]
    while programs:
        pid, status, used = os.wait3(0)
        index, program = programs.pop(pid)
        program.returncode = os.waitstatus_to_exitcode(status)
        if status:
            sys.exit(f"{command}: {program.stderr.read().decode()}")
        results[index] = (time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss)
    return results


def measure(options, variant, command):
    """Pairs of rounds, until the interval is as narrow as asked for."""
    rounds, pairs = [], []
    while len(pairs) < options.most:
        two = [together(options, variant, command, swapped) for swapped in (0, 1)]
        rounds += two
        pairs.append([statistics.mean(math.log(b[i] / a[i]) for a, b in two) for i in (0, 1)])
        if len(pairs) >= options.least and interval([p[0] for p in pairs])[1] <= options.width / 100:
            break
    return rounds, pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default=os.path.join(HERE, "../../../target/release/quire"))
    parser.add_argument("--python", default="python3")
    parser.add_argument("--user", type=int, help="run as this user")
    parser.add_argument("--only", help="these workloads, separated by commas")
    parser.add_argument("--variants", default="adaptive", help="same, adaptive, eager, base, reserve, always")
    parser.add_argument("--setting", help="change the setting of transparent huge pages meanwhile")
    parser.add_argument("--least", type=int, default=4, help="pairs at least")
    parser.add_argument("--most", type=int, default=25, help="pairs at most")
    parser.add_argument("--width", type=float, default=2.0, help="percent that the interval may have on each side")
    parser.add_argument("--out", help="write what was measured to this file")
    options = parser.parse_args()
    options.quire = os.path.realpath(options.quire)
    results = []
    with tempfile.TemporaryDirectory() as build, setting(options.setting):
        os.chmod(build, 0o755)
        commands = workloads(options, build)
        for name in options.only.split(",") if options.only else commands:
            for variant in options.variants.split(","):
                rounds, pairs = measure(options, variant, commands[name])
                (wall, wall_half), (cpu, cpu_half) = (interval([p[i] for p in pairs]) for i in (0, 1))
                memory = statistics.median(b[2] / a[2] for a, b in rounds)
                plain = statistics.median(a[0] for a, _ in rounds)
                print(f"{name:12} {variant:9} time {math.exp(wall):.3f} ±{100 * wall_half:.1f} %  processor "
                      f"{math.exp(cpu):.3f} ±{100 * cpu_half:.1f} %  memory {memory:.3f}  plain {plain:.2f} s  "
                      f"{len(pairs)} pairs", flush=True)
                results.append({"workload": name, "variant": variant, "user": options.user or os.getuid(),
                                "rounds": rounds})
                if options.out:
                    with open(options.out, "w") as file:
                        json.dump(results, file)


main()
