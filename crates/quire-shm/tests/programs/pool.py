"""Workers that are ended by SIGTERM when they have done their work, as a pool ends them."""

import array
import sys
from multiprocessing import get_context, shared_memory

NAME, ROWS = sys.argv[1], 256
ROW = 1024


def work(row):
    memory = shared_memory.SharedMemory(name=NAME)
    words = memory.buf.cast("d")
    words[row * ROW : (row + 1) * ROW] = array.array("d", [row + 1.0] * ROW)
    words.release()
    memory.close()


if __name__ == "__main__":
    memory = shared_memory.SharedMemory(name=NAME, create=True, size=8 * ROW * ROWS)
    words = memory.buf.cast("d")
    words[:] = array.array("d", bytes(8 * ROW * ROWS))
    with get_context("fork").Pool(4) as pool:
        pool.map(work, range(ROWS))
    rows = (words[row * ROW : (row + 1) * ROW] for row in range(ROWS))
    right = sum(all(word == row + 1.0 for word in words) for row, words in enumerate(rows))
    assert right == ROWS, f"{right} of {ROWS} rows hold what was written"
    words.release()
    memory.close()
    memory.unlink()
