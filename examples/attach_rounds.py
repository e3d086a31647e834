#!/usr/bin/env python3
"""Compares programs that `quire attach` found running with the same programs on
base pages and under the kernel's transparent huge pages, round by round.

Starts each program three times: twice on base pages (`never`), once with huge
pages at the first touch (`always`); one of the former is attached to after it has
filled its memory. Waits until nothing is left to promote, and then measures the three in
turn, in another order each round, while `quire attach` goes on. So what changes
from minute to minute on the machine cancels out in the ratio of two variants in
the same round. Prints medians of the time that a series of accesses takes, of
ratios to the other variants with 95 % bootstrap intervals, and the processor time
of `quire attach`. Where others use the machine, the processor time that a series
takes says more than the time on the clock. Needs root, a JDK,
Go, Python, and three times the memory of a program, one program after the other.
"""

import argparse
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
import urllib.request

from rounds import QUIRE, interval, without_out

THP = "/sys/kernel/mm/transparent_hugepage/enabled"
PORT = 19435
# The kernel's setting while a variant starts and is measured. Under `madvise`, a
# Go program would ask for huge pages itself.
VARIANTS = {"4k": "never", "always": "always", "attached": "never"}

# Each program fills its memory, and says so. For each line on its input it makes
# STEPS dependent accesses at random, and prints how long they took, in seconds.
JAVA = """
import java.util.Scanner;

public class Rounds {
    public static void main(String[] arguments) {
        int size = Integer.parseInt(arguments[0]) << 17;
        long steps = Long.parseLong(arguments[1]);
        long[] memory = new long[size];
        for (int i = 0; i < size; i++) memory[i] = i * 0x9e3779b97f4a7c15L;
        System.out.println("ready");
        Scanner input = new Scanner(System.in);
        long at = 1;
        while (input.hasNextLine()) {
            input.nextLine();
            long began = System.nanoTime();
            for (long n = 0; n < steps; n++)
                at = at * 6364136223846793005L + memory[(int) (at >>> 33) & (size - 1)] + 1;
            System.out.println((System.nanoTime() - began) / 1e9 + " " + at);
        }
    }
}
"""
GO = """
package main

import (
    "bufio"
    "fmt"
    "os"
    "strconv"
    "time"
)

func main() {
    mib, _ := strconv.Atoi(os.Args[1])
    steps, _ := strconv.Atoi(os.Args[2])
    memory := make([]uint64, mib<<17)
    for i := range memory {
        memory[i] = uint64(i) * 0x9e3779b97f4a7c15
    }
    fmt.Println("ready")
    input := bufio.NewScanner(os.Stdin)
    at, mask := uint64(1), uint64(len(memory)-1)
    for input.Scan() {
        began := time.Now()
        for n := 0; n < steps; n++ {
            at = at*6364136223846793005 + memory[at>>33&mask] + 1
        }
        fmt.Println(time.Since(began).Seconds(), at)
    }
}
"""
PYTHON = """
import random, sys, time

# Objects in another order than they lie in memory: adding them up goes to one
# after the other at random.
count = (int(sys.argv[1]) << 20) // 40
objects = [n + 1000 for n in range(count)]
random.Random(1).shuffle(objects)
print("ready", flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    total = sum(objects)
    print(time.perf_counter() - began, total, flush=True)
"""


def build(directory):
    """Writes and builds the programs; returns their commands by name."""
    commands = {}

    def write(name, text):
        path = os.path.join(directory, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def make(*command, **environment):
        environment = dict(os.environ, HOME=directory, **environment)
        subprocess.run(command, check=True, cwd=directory, env=environment)

    if shutil.which("javac"):
        make("javac", write("Rounds.java", JAVA))
        commands["java"] = ["java", "-Xms1g", "-Xmx1g", "-cp", directory, "Rounds"]
    if shutil.which("go"):
        make("go", "build", "-o", "rounds", write("rounds.go", GO), CGO_ENABLED="0", GO111MODULE="off")
        commands["go"] = [os.path.join(directory, "rounds")]
    commands["python"] = [sys.executable, write("rounds.py", PYTHON)]
    return commands


def thp(setting=None):
    """Reads the kernel's setting, or changes it."""
    if setting is None:
        with open(THP) as file:
            return re.search(r"\[(\w+)\]", file.read()).group(1)
    with open(THP, "w") as file:
        file.write(setting)


def start(command, variant):
    """Starts a program and waits until its memory is filled."""
    thp(VARIANTS[variant])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, bufsize=1, **pipes)
    if process.stdout.readline().strip() != "ready":
        sys.exit(f"{command[0]} did not start")
    return process


def used(process):
    """Processor time of all threads, seconds."""
    tasks = f"/proc/{process.pid}/task"
    total = 0
    for task in os.listdir(tasks):
        with open(f"{tasks}/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def measure(process):
    """Seconds for one series of accesses: on the clock, and of processors."""
    before = used(process)
    process.stdin.write("go\n")
    clock = float(process.stdout.readline().split()[0])
    return {"clock": clock, "cpu": used(process) - before}


def huge(process):
    """MiB in superpages."""
    with open(f"/proc/{process.pid}/smaps_rollup") as file:
        return int(re.search(r"AnonHugePages: +(\d+)", file.read()).group(1)) >> 10


def metrics():
    """What `quire attach` says of itself."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as answer:
                lines = answer.read().decode().splitlines()
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("quire attach does not answer")
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {re.sub(r"\{.*", "", name): float(value) for name, value in pairs}


def converge(process, limit):
    """Measures while extents are promoted; returns times and durations."""
    began = time.monotonic()
    series = []
    while True:
        seconds = measure(process)
        now = time.monotonic() - began
        state = metrics()
        series.append({"at": now, **seconds, "superpages_mib": huge(process)})
        waits = state.get("quire_attach_waiting_extents", 0)
        if state["quire_attach_looks_total"] > 2 and waits == 0 or now > limit:
            return series, waits


def compare(command, options):
    """All rounds of one program."""
    processes = {}
    attach = None
    try:
        for variant in VARIANTS:
            processes[variant] = start(command, variant)
        thp(VARIANTS["attached"])
        attached = processes["attached"]
        began = time.monotonic()
        watch = [QUIRE, "attach", "--cpu", str(options.cpu), "--threshold", options.threshold]
        watch += ["--metrics", f"127.0.0.1:{PORT}"]
        attach = subprocess.Popen([*watch, "--quiet", str(attached.pid)])
        series, waits = converge(attached, options.limit)
        first, first_cpu = time.monotonic() - began, metrics()["quire_attach_cpu_seconds_total"]
        samples = {variant: [] for variant in VARIANTS}
        for _ in range(options.rounds):
            for variant in random.sample(list(VARIANTS), len(VARIANTS)):
                thp(VARIANTS[variant])
                samples[variant].append(measure(processes[variant]))
        whole, whole_cpu = time.monotonic() - began, metrics()["quire_attach_cpu_seconds_total"]
        ratios = {
            f"{other}, {kind}": interval(
                [a[kind] / b[kind] for a, b in zip(samples[other], samples["attached"])]
            )
            for other in ("always", "4k")
            for kind in ("clock", "cpu")
        }
        return {
            "series": samples,
            "throughput_of_attached_to": ratios,
            "superpages_mib": {name: huge(process) for name, process in processes.items()},
            "until_promoted_s": first,
            "left_waiting": waits,
            "convergence": series,
            "cpu_percent": {
                "until_promoted": 100 * first_cpu / first,
                "afterwards": 100 * (whole_cpu - first_cpu) / (whole - first),
                "whole": 100 * whole_cpu / whole,
            },
        }
    finally:
        for process in [attach, *processes.values()]:
            if process:
                process.terminate()
                process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="rounds (20)")
    parser.add_argument("--mib", type=int, default=512, help="memory of a program; a power of 2 (512)")
    parser.add_argument("--steps", type=int, default=5_000_000, help="accesses in a series (5 million)")
    parser.add_argument("--cpu", type=float, default=1.5, help="percent of a processor for attach (1.5)")
    # Python leaves a page of each MiB unused.
    parser.add_argument("--threshold", default="90%", help="threshold for attach (90%%)")
    parser.add_argument("--limit", type=float, default=300, help="longest wait for promotions, s (300)")
    parser.add_argument("--out", metavar="DIRECTORY", help="write the samples there, as JSON")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="java, go, python")
    options = parser.parse_args()
    if not os.access(THP, os.W_OK):
        sys.exit(f"{THP} cannot be written: run this as root")
    if not os.path.exists(QUIRE):
        sys.exit("build first: cargo build --release")
    setting = thp()
    # So that everything is put back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    directory = tempfile.mkdtemp()
    results = {}
    try:
        commands = build(directory)
        for name in options.programs or commands:
            if name not in commands:
                sys.exit(f"no such program here: {name}")
            command = [*commands[name], str(options.mib), str(options.steps)]
            results[name] = compare(command, options)
            show(name, results[name])
    finally:
        thp(setting)
        shutil.rmtree(directory)
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, "attach_rounds.json"), "w") as file:
            json.dump({"options": without_out(options), "programs": results}, file, indent=1)


def show(name, result):
    """A few lines for people."""
    print(name)
    for variant, series in result["series"].items():
        clock, cpu = (statistics.median(one[kind] for one in series) for kind in ("clock", "cpu"))
        memory = result["superpages_mib"][variant]
        print(f"  {variant:9} {clock:7.4f} s a series, {cpu:7.4f} s of processors, {memory} MiB in superpages")
    for other, ratio in result["throughput_of_attached_to"].items():
        print(f"  attached is {ratio['centre']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] of {other}")
    cpu = result["cpu_percent"]
    print(f"  promoted after {result['until_promoted_s']:.0f} s, {result['left_waiting']:.0f} left")
    print(f"  attach used {cpu['until_promoted']:.2f} % of a processor until then, "
          f"{cpu['afterwards']:.2f} % afterwards, {cpu['whole']:.2f} % in all", flush=True)


if __name__ == "__main__":
    main()
