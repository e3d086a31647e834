"""Gathers and sorts of numpy arrays: gather.py [ROUNDS]."""
import sys
import numpy as np

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
draw = np.random.default_rng(1)
values = draw.random(16 << 20)
places = draw.integers(0, len(values), 4 << 20)
total = 0.0
for _ in range(rounds):
    total += values[places].sum()
    part = values[: 1 << 20].copy()
    part.sort()
    total += part[7]
print(total)
