"""Workers that are started by each method of multiprocessing, and share memory that no name stands for."""

import multiprocessing
import sys

NUMBERS, WORKERS = 10, 2


def work(numbers, total):
    with total.get_lock():
        total.value += sum(numbers)


if __name__ == "__main__":
    for method in sys.argv[1:]:
        context = multiprocessing.get_context(method)
        numbers = context.RawArray("q", range(NUMBERS))
        total = context.Value("q", 0)
        workers = [context.Process(target=work, args=(numbers, total)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0, f"{method}: {worker.exitcode}"
        assert total.value == WORKERS * sum(range(NUMBERS)), f"{method}: {total.value}"
