"""Makes shared memory of Python, and sees what another program writes to it."""
import sys
from multiprocessing import shared_memory

memory = shared_memory.SharedMemory(name=sys.argv[1], create=True, size=100_000)
memory.buf[:5] = b"hello"
memory.buf[99_999] = 7
print("made", flush=True)
sys.stdin.readline()
assert bytes(memory.buf[10:15]) == b"there", bytes(memory.buf[:20])
memory.close()
memory.unlink()
