#!/usr/bin/env python3
"""How often `quire bench`, hyperfine's figures and Welch's test say that two commands differ: of a command
against itself (A/A), where each such claim is false, and against one that does a little more (A/B).

    cargo build --release -p quire-measure
    python3 examples/claims.py target/release/quire-measure [--comparisons 10] [--runs 10] [--seconds 360]
        [--hyperfine hyperfine] [--out claims.json]

The commands compress, sort, count and compute. Those of an A/B comparison do 5 % more of the same work. By turns,
`quire bench` compares two commands in one call and `hyperfine -N` in another, with as many runs, without a shell.
Hyperfine prints "1.03 ± 0.02 times faster": that counts as a claim where the ratio less 1 is more than the ±, and
Welch's test of hyperfine's times where p is below 0.05. Welch's test is made of the times of `quire bench`, too, which
are from interleaved runs, to tell what interleaving does from what the rule does. Without hyperfine its columns are
left out.
"""
import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

PYTHON = sys.executable


def commands(directory, percent):
    """The commands, with so many percent of their work."""
    def name(kind):
        return os.path.join(directory, f"{kind}{percent}")
    lines = 400 * percent
    with open(name("text"), "w") as file:
        file.writelines(f"{n * 7919 % 1000003} line {n}\n" for n in range(lines))
    with open(name("count"), "w") as file:
        file.write(f"s = 0\nfor n in range({3000 * percent}):\n    s += n * n\n")
    return {
        "gzip": f"gzip -k -c {name('text')}",
        "sort": f"sort {name('text')}",
        "awk": f"awk 1 {name('text')}",
        "python": f"{PYTHON} -S {name('count')}",
    }


def welch(a, b):
    """The p value of Welch's test, by the integral of Student's density."""
    va, vb = (statistics.variance(x) / len(x) for x in (a, b))
    if va + vb == 0:
        return 0.0 if statistics.mean(a) != statistics.mean(b) else 1.0
    t = abs(statistics.mean(a) - statistics.mean(b)) / math.sqrt(va + vb)
    n = (va + vb) ** 2 / (va ** 2 / (len(a) - 1) + vb ** 2 / (len(b) - 1))
    scale = math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(n * math.pi)
    steps = 2000
    points = (scale * (1 + (t * (k + 0.5) / steps) ** 2 / n) ** (-(n + 1) / 2) for k in range(steps))
    return max(0.0, 1 - 2 * sum(points) * t / steps)


def run(words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: status {done.returncode}: {done.stderr[-300:]}")
    return done.stdout


def by_quire(quire, pair, runs):
    run([quire, "bench", "-N", "-q", "-w", "1", "-r", runs, "-n", "a", "-n", "b", "--export-json", "q.json", *pair])
    with open("q.json") as file:
        found = json.load(file)
    ratio = found["quire"]["results"][0]["variants"][1]["ratio"]
    times = [result["times"] for result in found["results"]]
    return {"quire bench": not ratio["low"] <= 1 <= ratio["high"], "Welch, interleaved": welch(*times) < 0.05}


def by_hyperfine(hyperfine, pair, runs):
    run([hyperfine, "-N", "--style", "none", "-w", "1", "-r", runs, "--export-json", "h.json", *pair])
    with open("h.json") as file:
        a, b = (result["times"] for result in json.load(file)["results"])
    means = [statistics.mean(x) for x in (a, b)]
    slow, fast = max(means), min(means)
    parts = (statistics.stdev(x) / statistics.mean(x) for x in (a, b))
    error = slow / fast * math.sqrt(sum(part ** 2 for part in parts))
    return {"hyperfine's ±": slow / fast - 1 > error, "Welch, hyperfine's runs": welch(a, b) < 0.05}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("quire")
    parser.add_argument("--comparisons", type=int, default=10, help="of each command, A/A and A/B")
    parser.add_argument("--runs", default="10")
    parser.add_argument("--seconds", type=float, default=360, help="begin no comparison after so long")
    parser.add_argument("--hyperfine", default=shutil.which("hyperfine"))
    parser.add_argument("--out")
    options = parser.parse_args()
    quire, hyperfine = os.path.realpath(options.quire), options.hyperfine and os.path.realpath(options.hyperfine)
    out = options.out and os.path.realpath(options.out)
    started, claims, made = time.monotonic(), {"A/A": {}, "A/B": {}}, {"A/A": 0, "A/B": 0}
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        plain, more = commands(directory, 100), commands(directory, 105)
        turns = [(kind, name) for _ in range(options.comparisons) for name in plain for kind in claims]
        for kind, name in turns:
            if time.monotonic() - started > options.seconds:
                break
            pair = [plain[name], plain[name] if kind == "A/A" else more[name]]
            found = by_quire(quire, pair, options.runs)
            if hyperfine:
                found |= by_hyperfine(hyperfine, pair, options.runs)
            made[kind] += 1
            for who, claim in found.items():
                claims[kind][who] = claims[kind].get(who, 0) + claim
        os.chdir("/")
    for kind, counted in claims.items():
        for who, count in counted.items():
            print(f"{kind}  {who:24} {count:3} of {made[kind]}")
    seconds = time.monotonic() - started
    print(f"{options.runs} runs each, {seconds:.0f} s")
    if out:
        with open(out, "w") as file:
            json.dump({"comparisons": made, "claims": claims, "runs": int(options.runs), "seconds": seconds}, file, indent=1)


if __name__ == "__main__":
    main()
