"""A neighbour on the same CPUs: a process for each computes a little for a while, and rests for a while, all by chance.

``neighbour.py SEED MEAN_S`` is one of these processes; it ends with its standard input. The lengths of both are drawn
from an exponential distribution with the mean MEAN_S, the same for all processes of a seed.
"""

import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

BUSY_S, EVERY_S = 0.004, 0.1
"""What it computes while it does. Threads of a job wait for each other: one that is held up holds up all."""


@contextmanager
def neighbour(seed: int, mean_s: float) -> Iterator[None]:
    """Have a neighbour on every CPU of this process until the end of the block."""
    processes = []
    try:
        for cpu in sorted(os.sched_getaffinity(0)):
            argv = ["taskset", "--cpu-list", str(cpu), sys.executable, __file__, str(seed), str(mean_s)]
            processes.append(subprocess.Popen(argv, stdin=subprocess.PIPE))
        yield
    finally:
        for process in processes:
            process.communicate()


def disturb(seed: int, mean_s: float) -> None:
    """Compute and rest in turn until standard input ends."""
    chance = random.Random(seed)  # noqa: S311 (weather, not a secret)
    computing = False
    while True:
        computing = not computing
        until = time.monotonic() + chance.expovariate(1 / mean_s)
        while (left_s := until - time.monotonic()) > 0:
            busy_until = time.monotonic() + BUSY_S
            while computing and time.monotonic() < busy_until:
                pass
            ended, _, _ = select.select([sys.stdin], [], [], EVERY_S - BUSY_S if computing else left_s)
            if ended:
                return


if __name__ == "__main__":
    disturb(int(sys.argv[1]), float(sys.argv[2]))
