"""Finds shared memory of Python, reads it and writes to it, here and in a child."""
import multiprocessing
import sys
from multiprocessing import resource_tracker, shared_memory

memory = shared_memory.SharedMemory(name=sys.argv[1])
# Who only uses it does not remove it.
resource_tracker.unregister(memory._name, "shared_memory")
assert memory.size == 100_000, memory.size
assert bytes(memory.buf[:5]) == b"hello" and memory.buf[99_999] == 7


def write():
    memory.buf[10:15] = b"there"


child = multiprocessing.get_context("fork").Process(target=write)
child.start()
child.join()
assert child.exitcode == 0, child.exitcode
assert bytes(memory.buf[10:15]) == b"there"
memory.close()
