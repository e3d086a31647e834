"""Objects, big buffers, subprocesses and a forking pool, with one digest."""

import gc
import hashlib
import multiprocessing
import os
import random
import subprocess
import sys

digest = hashlib.sha256()


def note(text):
    digest.update(str(text).encode())
    print(text, flush=True)


random.seed(7)
table = {f"key {i}": (i, [i] * (i % 7), str(i) * 3) for i in range(60_000)}
note(sum(v[0] for v in table.values()))
for i in range(0, 60_000, 3):
    del table[f"key {i}"]
gc.collect()
note(len(table))
numbers = [random.random() for _ in range(120_000)]
numbers.sort()
note(hashlib.sha256(repr(numbers[::50]).encode()).hexdigest())

buffer = bytearray(24 << 20)
for i in range(0, len(buffer), 4096):
    buffer[i] = i // 4096 % 251
note(hashlib.sha256(buffer).hexdigest())
buffer += buffer[: 8 << 20]
note(hashlib.sha256(buffer).hexdigest())

for i in range(6):
    code = f"print(sum(range({i} * 100000)))"
    note(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout)


def child(n):
    """Reads what it inherited and writes to its own copy."""
    total = sum(table[k][0] for k in list(table)[n::8])
    buffer[n] = 255
    mine = [bytes([n]) * 1000 for _ in range(3000)]
    return total, len(mine), hashlib.sha256(buffer).hexdigest()


before = hashlib.sha256(buffer).hexdigest()
with multiprocessing.get_context("fork").Pool(4) as pool:
    results = pool.map(child, [3] * 8, chunksize=1)
note(results[0])
note(len({r[:2] for r in results}))
note(hashlib.sha256(buffer).hexdigest() == before)

for n in range(10):
    pid = os.fork()
    if pid == 0:
        buffer[:] = bytes(len(buffer))
        os._exit(len(table) % 100)
    note(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    table[f"new {n}"] = (n, [], "")
note(hashlib.sha256(buffer).hexdigest() == before)
note(digest.hexdigest())
