#!/usr/bin/env python3
"""Compares two variants repetition by repetition, from a benchmark's JSON file.

A repetition runs every variant once, within minutes, so a ratio within one
repetition is free of what changes over hours. Prints how many times as good the
second variant is, with a 95 % bootstrap interval: the median of the ratios, or, for
a workload of several programs, their geometric mean over programs and repetitions.

    python3 docs/results/paired.py docs/results/random-1g.json read_ns thp quire-reserve
    python3 docs/results/paired.py docs/results/figure3.json wall_s 4k quire-reserve
"""

import json
import random
import statistics
import sys


def samples(report, metric):
    """The values by program (None where there is one), repetition and variant."""
    found = {}
    for run in report["runs"]:
        for name, value in run["metrics"].items():
            own, _, program = name.partition("@")
            if own == metric:
                found[program, run["repetition"], run["variant"]] = value
    return found


def compare(found, metric, baseline, variant):
    """Ratios of the pairs that ran, and whether they are of several programs."""
    higher_is_better = metric.endswith("_rps")
    ratios = []
    for program, number, name in sorted(found):
        other = found.get((program, number, variant))
        if name == baseline and other is not None:
            value = found[program, number, baseline]
            ratios.append(other / value if higher_is_better else value / other)
    return ratios, any(program for program, _, _ in found)


def main():
    if len(sys.argv) != 5:
        sys.exit(f"usage: {sys.argv[0]} FILE.json METRIC BASELINE VARIANT")
    path, metric, baseline, variant = sys.argv[1:]
    with open(path) as file:
        found = samples(json.load(file), metric)
    ratios, several = compare(found, metric, baseline, variant)
    if not ratios:
        sys.exit(f"no repetition has {metric} of both {baseline} and {variant}")
    middle = statistics.geometric_mean if several else statistics.median
    draw = random.Random(1)
    drawn = sorted(middle(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    pairs = f"{len(ratios)} {'pairs' if several else 'repetitions'}"
    print(f"{middle(ratios):.3f} [{drawn[100]:.3f}, {drawn[3899]:.3f}], {pairs}")


main()
