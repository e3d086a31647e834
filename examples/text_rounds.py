#!/usr/bin/env python3
"""Compares programs with much text with and without `quire run --text`, round by
round.

gcc compiles a large generated file, Python compiles and runs one; each in turn
without Quire, under `quire run`, and under `quire run --text`, in another order
each round. Before the first round, the page cache drops the text of the programs,
so that it can be read anew onto superpages. Prints medians of the processor time
that a program spends in user mode, and of ratios, with 95 % bootstrap intervals.
For PostgreSQL see pgbench_rounds.py. Needs gcc and Python.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile

from rounds import QUIRE, interval, ratios, text, without_out

WAYS = {
    "plain": [],
    "quire": [QUIRE, "run", "--quiet", "--"],
    "text": [QUIRE, "run", "--quiet", "--text", "--"],
}


def c_source(functions):
    """A file of many functions of which none is like the other."""
    draw = random.Random(1)
    parts = ["unsigned long strlen(const char *);\n"]
    for n in range(functions):
        a, b, c = (draw.randrange(1, 1000) for _ in range(3))
        parts.append(
            f"int f{n}(int x, char *s) {{\n"
            f"  int t[{a % 60 + 4}], i, sum = {b};\n"
            f"  for (i = 0; i < {a % 60 + 4}; i++) t[i] = x * {c} + (i ^ {b});\n"
            f"  switch (x % {b % 7 + 3}) {{\n"
            + "".join(f"  case {k}: sum += t[{k}] * {draw.randrange(99)} - strlen(s + {k}); break;\n" for k in range(b % 7 + 3))
            + f"  }}\n  while (sum > {a}) sum = sum / {c % 9 + 2} - t[sum & 3];\n"
            f"  return sum{f' + f{draw.randrange(n)}(x - 1, s)' if n else ''};\n}}\n"
        )
    return "".join(parts)


def python_source(functions):
    """A script of many functions, classes and strings, which runs them all."""
    draw = random.Random(2)
    parts = ["import collections, json, re\n"]
    for n in range(functions):
        a, b = draw.randrange(2, 50), draw.randrange(2, 50)
        parts.append(
            f"class C{n}:\n"
            f"    def __init__(self, x):\n        self.x, self.d = x, {{str(k): k * {a} for k in range({b})}}\n"
            f"    def run(self):\n"
            f"        words = re.findall(r'[a-z]+', 'w{a} v{b} ' * {a})\n"
            f"        count = collections.Counter(words)\n"
            f"        back = json.loads(json.dumps([self.d, sorted(count.items())]))\n"
            f"        return sum(back[0].values()) + self.x % {b} + len('%s-%d' % (words[0], {a}))\n"
        )
    parts.append(f"print(sum(c(7).run() for _ in range(80) for c in [{', '.join(f'C{n}' for n in range(functions))}]))\n")
    return "".join(parts)


def drop(path):
    """Lets the page cache forget a file that nobody has changed."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def user_time(command, directory):
    """Seconds of user mode of a command and its children, and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, cwd=directory, check=True, stdout=subprocess.PIPE)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, done.stdout


def programs(directory, size):
    """The commands by name, each with the file of which the text counts."""
    with open(os.path.join(directory, "large.c"), "w") as file:
        file.write(c_source(size))
    with open(os.path.join(directory, "large.py"), "w") as file:
        file.write(python_source(size))
    cc1 = subprocess.run(["gcc", "-print-prog-name=cc1"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    # Debian's own, of which the text is at a fixed address.
    python = os.path.realpath(shutil.which("python3", path="/usr/bin") or sys.executable)
    return {
        "gcc": ([cc1, "-quiet", "-O2", "-w", "large.c", "-o", "-"], cc1),
        "python": ([python, "-B", "large.py"], python),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds (7)")
    parser.add_argument("--size", type=int, default=1500, help="functions in the sources (1500)")
    parser.add_argument("--out", metavar="DIRECTORY", help="write the samples there, as JSON")
    options = parser.parse_args()
    if not os.path.exists(QUIRE):
        sys.exit("build first: cargo build --release")
    directory = tempfile.mkdtemp()
    results = {}
    try:
        for name, (command, file) in programs(directory, options.size).items():
            drop(file)
            samples = {way: [] for way in WAYS}
            wanted = user_time([*WAYS["text"], *command], directory)[1]
            for _ in range(options.rounds):
                for way in random.sample(list(WAYS), len(WAYS)):
                    seconds, output = user_time([*WAYS[way], *command], directory)
                    if output != wanted:
                        sys.exit(f"{name} gives another result: {way}")
                    samples[way].append(seconds)
            results[name] = samples
            for way in WAYS:
                line = f"{name:7} {way:6} {text(interval(samples[way]))} s"
                for other in list(WAYS)[: list(WAYS).index(way)]:
                    line += f", {text(ratios(samples, way, other))} of {other}"
                print(line, flush=True)
    finally:
        shutil.rmtree(directory)
    if options.out:
        with open(os.path.join(options.out, "text_rounds.json"), "w") as file:
            json.dump({"options": without_out(options), "user_seconds": results}, file, indent=1)


if __name__ == "__main__":
    main()
