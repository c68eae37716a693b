"""Measure the suite's DCGAN against PyTorch's example, and the recipe ``tuned`` against ``reference``.

The example's loop (``parts/dcgan_loop.py``) against the worker's step of the recipe ``reference``, and ``tuned``
against ``reference``: 64 px on the CPU, each side a process of its own with the same threads and the job's variables,
in pairs whose order is drawn. Prints the trimmed geometric mean of the pairs' ratios with its 95 % interval.

    python benchmarks/dcgan.py --pairs 10
"""

import argparse
import math
import random
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))  # as a script, this file is not part of the installed suite

from analysis.statistics.ratios import judge, locate  # noqa: E402
from scenarios.job import clean_environment  # noqa: E402

PLAIN, REFERENCE, TUNED = "plain", "reference", "tuned"
PAIRS = ((REFERENCE, PLAIN), (TUNED, REFERENCE))
MARGIN = 0.02
IMAGE_PX, SEED = 64, 3


def main() -> None:
    options = parse()
    sizes = [
        str(each) for each in (options.batch, IMAGE_PX, options.warmup_steps, options.steps, options.threads, SEED)
    ]
    if options.side:
        print(suite_rate(options.side, *map(int, sizes)))
        return
    order = random.Random(options.seed)  # noqa: S311 - an order, not a secret
    for own, base in PAIRS:
        ratios = []
        for number in range(1, options.pairs + 1):
            found = {side: rate(side, sizes, options.threads) for side in order.sample((own, base), 2)}
            ratios.append(found[own] / found[base])
            print(
                f"pair {number}: {own} {found[own]:.2f}, {base} {found[base]:.2f} images/s, {ratios[-1]:.3f}x",
                flush=True,
            )
        told(own, base, ratios)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=10, help="at least 2 (default %(default)s)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--warmup-steps", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the order in each pair")
    parser.add_argument("--side", choices=(REFERENCE, TUNED), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs must be at least 2: one ratio has no interval")
    return options


def rate(side: str, sizes: list[str], threads: int) -> float:
    """Return the images per second of a side, in a process that has the job's variables and no others."""
    recipe = REFERENCE if side == PLAIN else side
    words = [str(REPOSITORY / "benchmarks/parts/dcgan_loop.py"), *sizes]
    if side != PLAIN:
        names = ("--batch", None, "--warmup-steps", "--steps", "--threads", None)
        given = [word for name, size in zip(names, sizes, strict=True) if name for word in (name, size)]
        words = [__file__, "--side", side, *given]
    argv = [*clean_environment(threads, recipe, PYTHONPATH=str(REPOSITORY)), sys.executable, *words]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()[-1])


def suite_rate(recipe: str, batch: int, image_px: int, warmup_steps: int, steps: int, threads: int, seed: int) -> float:
    """Return the images per second of the worker's own steps."""
    import torch

    from worker.spec import Spec
    from worker.training.build import build_trainer, opened_batches
    from worker.training.device import open_devices
    from worker.training.step import Samples

    torch.set_num_interop_threads(1)
    torch.set_num_threads(threads)
    sizes = {"batch": batch, "image_px": image_px, "channels": 3, "warmup_steps": warmup_steps, "steps": steps}
    place = {"workload": "worker.workloads.dcgan:DCGAN", "device": "cpu", "devices": 1, "parallel": "none"}
    spec = Spec(**sizes, **place, threads=threads, recipe=recipe, seed=seed)  # type: ignore[arg-type]
    with opened_batches(spec) as batches:
        trainer = build_trainer(spec, open_devices("cpu", 1), batches)
        for _ in range(warmup_steps):
            trainer.step(Samples.allocate(1, trainer.phases, trainer.parts), 0)
        samples = Samples.allocate(steps, trainer.phases, trainer.parts)
        begin_s = time.monotonic()
        for index in range(steps):
            trainer.step(samples, index)
        return batch * steps / (time.monotonic() - begin_s)


def told(own: str, base: str, ratios: list[float]) -> None:
    place = locate([math.log(ratio) for ratio in ratios])
    if place is None or place.interval is None:
        raise SystemExit("at least 2 pairs are needed")
    low, high = (math.exp(end) for end in place.interval)
    (verdict,) = judge([place], MARGIN)
    said = verdict.name if verdict else "undecided"
    print(f"{own} over {base}: {math.exp(place.centre):.3f}x ({low:.3f} to {high:.3f}), {said}")


if __name__ == "__main__":
    main()
