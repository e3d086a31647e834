#!/usr/bin/env python3
"""Compares two variants repetition by repetition, from a benchmark's JSON file.

A repetition runs every variant once, within minutes, so a ratio within one
repetition is free of what changes over hours. Prints the median of the ratios (how
many times as good) and its 95 % bootstrap interval.

    python3 docs/results/paired.py docs/results/random-1g.json read_ns thp quire-reserve
"""

import json
import random
import statistics
import sys

if len(sys.argv) != 5:
    sys.exit(f"usage: {sys.argv[0]} FILE.json METRIC BASELINE VARIANT")
path, metric, baseline, variant = sys.argv[1:]
with open(path) as file:
    report = json.load(file)
values = {
    (run["variant"], run["repetition"]): run["metrics"][metric]
    for run in report["runs"]
    if metric in run["metrics"]
}
higher_is_better = metric.endswith("_rps")
ratios = []
for number in range(report["repetitions"]):
    pair = [values.get((name, number)) for name in (baseline, variant)]
    if None not in pair:
        ratios.append(pair[1] / pair[0] if higher_is_better else pair[0] / pair[1])
if not ratios:
    sys.exit(f"no repetition has {metric} of both {baseline} and {variant}")
draw = random.Random(1)
medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
middle = statistics.median(ratios)
print(f"{middle:.3f} [{medians[100]:.3f}, {medians[3899]:.3f}], {len(ratios)} repetitions")
