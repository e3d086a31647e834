#!/usr/bin/env python3
"""How long programs of 0, 1 and 5 ms take under `quire bench`, beside a C program that only spawns and waits.

    cargo build --release -p quire-measure
    python3 examples/start_costs.py target/release/quire-measure [ROUNDS] [EXECUTIONS]

Both run in turns. Printed are the tenth, the quarter and the half of the times in ms: of the C program, of
`quire bench` that keeps results in memory, and of one that keeps them in a file.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

SPIN = r"""
#include <stdlib.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
int main(int c, char **v)
{
    double ms = atof(v[1]), start = ms > 0 ? now() : 0;
    while (ms > 0 && now() - start < ms) ;
    return c < 2;
}
"""
SPAWN = r"""
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
extern char **environ;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
int main(int c, char **v)
{
    posix_spawn_file_actions_t f;
    posix_spawn_file_actions_init(&f);
    posix_spawn_file_actions_addopen(&f, 1, "/dev/null", O_WRONLY, 0);
    for (int i = 0; i < atoi(v[1]); i++) {
        pid_t pid;
        int status;
        double start = now();
        if (posix_spawn(&pid, v[2], &f, 0, v + 2, environ)) return 1;
        waitpid(pid, &status, 0);
        printf("%f\n", now() - start);
    }
    return c < 3;
}
"""


def compile_c(name, source):
    with open(name + ".c", "w") as file:
        file.write(source)
    subprocess.run(["gcc", "-O2", "-o", name, name + ".c"], check=True)


def spawned(count, ms):
    done = subprocess.run(["./spawn", count, "./spin", ms], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def in_memory(quire, count, ms):
    subprocess.run([quire, "bench", "-N", "-q", "-r", count, "--export-json", "out.json", f"./spin {ms}"], check=True)
    with open("out.json") as file:
        return [time * 1e3 for time in json.load(file)["results"][0]["times"]]


def in_file(quire, count, ms):
    if os.path.exists("out.jsonl"):
        os.remove("out.jsonl")
    subprocess.run([quire, "bench", "-N", "-q", "-r", count, "-o", "out.jsonl", f"./spin {ms}"], check=True)
    with open("out.jsonl") as file:
        lines = map(json.loads, file)
        return [line["metrics"]["time"][0] * 1e3 for line in lines if line.get("kind") == "execution"]


def main():
    quire, rounds, count = [*sys.argv[1:], *("", "20", "40")[len(sys.argv) - 1:]]
    quire, rounds = os.path.realpath(quire), int(rounds)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        compile_c("spin", SPIN)
        compile_c("spawn", SPAWN)
        for ms in ("0", "1", "5"):
            times = {"spawn and wait": [], "in memory": [], "in a file": []}
            for _ in range(rounds):
                times["spawn and wait"] += spawned(count, ms)
                times["in memory"] += in_memory(quire, count, ms)
                times["in a file"] += in_file(quire, count, ms)
            for name, values in times.items():
                parts = statistics.quantiles(values, n=20)
                print(f"{ms} ms  {name:15} {parts[1]:.3f} {parts[4]:.3f} {parts[9]:.3f}", flush=True)


main()
