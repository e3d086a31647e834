"""What the scripts of this folder share: statistics of paired rounds, and the
settings of the kernel that they change and put back."""

import os
import random
import statistics

HERE = os.path.dirname(os.path.abspath(__file__))
QUIRE = os.path.join(HERE, "..", "target", "release", "quire")


def interval(values, centre=statistics.median):
    """The median, or another centre, and its 95 % bootstrap interval."""
    draw = random.Random(1)
    found = sorted(centre(draw.choices(values, k=len(values))) for _ in range(2000))
    return {"centre": centre(values), "low": found[50], "high": found[1949]}


def ratios(samples, of, to):
    """The ratio of two series of the same rounds."""
    return interval([a / b for a, b in zip(samples[of], samples[to])])


def text(value, digits=3):
    """A value with its interval, for people."""
    return f"{value['centre']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def without_out(options):
    """The options of a script, but for where it writes."""
    return {name: value for name, value in vars(options).items() if name != "out"}


class Setting:
    """A file of /proc or /sys that is put back in the end."""

    def __init__(self, path):
        self.path = path
        with open(path) as file:
            found = file.read().strip()
        self.before = found.split("[")[-1].split("]")[0]

    def __enter__(self):
        return self

    def set(self, value):
        with open(self.path, "w") as file:
            file.write(str(value))

    def __exit__(self, *_):
        self.set(self.before)
