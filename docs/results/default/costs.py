#!/usr/bin/env python3
"""Measures what single things cost plain and under the default, in interleaved rounds: medians and quartiles.

    python3 docs/results/default/costs.py --out docs/results/default-costs.json [--user 65534] [--rounds 9]
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MAIN = 'int f{n}(int x) {{ for (int i = 0; i < 9; i++) x = x * {n} + i; return x; }}\n'


def prefix(options, variant):
    user = ["setpriv", f"--reuid={options.user}", f"--regid={options.user}", "--clear-groups"] if options.user else []
    quire = [] if variant == "plain" else [options.quire, "run", "--quiet", "--policy", variant, "--"]
    return [*user, *quire]


def output(options, variant, command):
    return subprocess.run([*prefix(options, variant), *command], check=True, capture_output=True, text=True).stdout


def seconds(options, variant, command):
    began = time.monotonic()
    output(options, variant, command)
    return time.monotonic() - began


def measurements(build):
    """Name: unit, how to measure."""
    costs = f"{build}/costs"
    def number(*arguments):
        return lambda options, variant: float(output(options, variant, [costs, *arguments]).split()[0])
    def both(*arguments):
        def measure(options, variant):
            subprocess.run([costs, "warm", "8192"], check=True)
            took, used, huge = output(options, variant, [costs, *arguments]).split()
            return [float(took), float(used), float(huge)]
        return measure
    def time_of(*command):
        return lambda options, variant: seconds(options, variant, command)
    loop = "for i in $(seq 500); do /bin/true; done"
    make = f"make -s -C {build}/project clean all"
    small = "awk '/^Rss/ {print $2}' /proc/self/smaps_rollup"
    return {
        "fill 1 GiB: s, processor s, MiB of superpages": both("fill", "1024"),
        "fill 4 GiB: s, processor s, MiB of superpages": both("fill", "4096"),
        "one page in each 2 MiB of 4 GiB: MiB": number("each-2mib", "4096"),
        "one page in eight of 1 GiB, at random: MiB": number("eighth", "1024"),
        "a dense quarter of 1 GiB, then sparse: MiB": number("quarter", "1024"),
        "map and unmap 64 KiB: us": number("map", "65536", "100000"),
        "map and unmap 8 MiB: us": number("map", "8388608", "50000"),
        "fork with 64 MiB: us": number("fork", "300"),
        "start of a process: s": time_of("/bin/true"),
        "fork and exec 500 times: s": time_of("sh", "-c", loop),
        "make of a small C project: s": time_of("sh", "-c", make),
        "a small process: KiB": lambda o, v: float(output(o, v, ["sh", "-c", small])),
        "at rest with 100 GiB mapped, sparse: thousandths of a processor": number("rest", "100", "10"),
        "at rest with 100 GiB mapped, 8 GiB dense: thousandths of a processor": number("rest", "100", "10", "8192"),
    }


def project(build):
    """Twenty small C files, and how they are built."""
    os.makedirs(f"{build}/project")
    for n in range(20):
        with open(f"{build}/project/f{n}.c", "w") as file:
            file.write(MAIN.format(n=n))
    with open(f"{build}/project/main.c", "w") as file:
        file.write("int f1(int); int main(void) { return f1(0) & 0; }\n")
    with open(f"{build}/project/Makefile", "w") as file:
        file.write("all: main\nmain: $(patsubst %.c,%.o,$(wildcard *.c))\n\tcc -o $@ $^\nclean:\n\trm -f main *.o\n")
    subprocess.run(["chmod", "-R", "a+rwX", build], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default=os.path.join(HERE, "../../../target/release/quire"))
    parser.add_argument("--user", type=int)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help="those whose names hold this")
    parser.add_argument("--variants", default="plain,adaptive")
    parser.add_argument("--out")
    options = parser.parse_args()
    options.quire = os.path.realpath(options.quire)
    results = []
    with tempfile.TemporaryDirectory() as build:
        subprocess.run(["gcc", "-O2", f"{HERE}/costs.c", "-o", f"{build}/costs"], check=True)
        project(build)
        for name, measure in measurements(build).items():
            if options.only and options.only not in name:
                continue
            variants = options.variants.split(",")
            found = {variant: [] for variant in variants}
            rounds = min(options.rounds, 2) if "at rest" in name else options.rounds
            for number in range(rounds + 1):
                for variant in variants if number % 2 else variants[::-1]:
                    value = measure(options, variant)
                    # The first round warms memory up.
                    if number or rounds <= 2:
                        found[variant].append(value if isinstance(value, list) else [value])
            print(name)
            for variant in variants:
                columns = list(zip(*found[variant]))
                texts = []
                for column in columns:
                    low, middle, high = statistics.quantiles(column, n=4) if len(column) > 1 else column * 3
                    texts.append(f"{middle:.5g} [{low:.5g}, {high:.5g}]")
                print(f"  {variant:9} {'  '.join(texts)}", flush=True)
            results.append({"name": name, "user": options.user or os.getuid(), "found": found})
            if options.out:
                with open(options.out, "w") as file:
                    json.dump(results, file)


main()
