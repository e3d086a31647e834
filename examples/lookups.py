#!/usr/bin/env python3
"""Looks up random entries of a table of 1 GiB, as joins and hash tables do.

Almost every lookup touches another page, so the program waits for address
translation as much as for memory. Prints how long the lookups took.
"""

import random
import time
from array import array

ENTRIES = 1 << 27
LOOKUPS = 4_000_000
ROUNDS = 5

table = array("q", [1]) * ENTRIES
words = array("I", random.Random(1).randbytes(4 * LOOKUPS))
places = array("I", [word % ENTRIES for word in words])

start = time.perf_counter()
for _ in range(ROUNDS):
    total = sum(map(table.__getitem__, places))
    assert total == LOOKUPS
seconds = time.perf_counter() - start
print(f"{ROUNDS * LOOKUPS:,} lookups in {seconds:.2f} s")
