"""Makes shared memory whose name Python invents, or uses it. A lock beside it is a semaphore."""
import multiprocessing
import sys
from multiprocessing import shared_memory

if sys.argv[1] == "make":
    memory = shared_memory.SharedMemory(create=True, size=100_000)
    lock = multiprocessing.Lock()
    with lock:
        memory.buf[:5] = b"hello"
    print(memory.name, flush=True)
    sys.stdin.readline()
    memory.close()
    memory.unlink()
else:
    memory = shared_memory.SharedMemory(name=sys.argv[2])
    print(bytes(memory.buf[:5]).decode())
    memory.close()
