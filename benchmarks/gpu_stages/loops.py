"""The stages C and W: the suite beside loops by hand, and what waiting after each step costs."""

from gpu_stages.day import REHEARSED, REPOSITORY, Day, Facts, Found, about, ratio
from suite.plan import balanced

LOOPS = {"resnet50": (32, 224, 100, 200), "dcgan": (128, 64, 200, 1000)}
"""Batch, pixels, warm-up and measured steps of the loops by hand."""


def loop(day: Day, side: str, model: str) -> tuple[float, float]:
    """Return the last loss and the images per second of ``cuda_loop.py``."""
    sizes = (2, 64, 0, 1) if day.options.rehearse else LOOPS[model]
    script = str(REPOSITORY / "benchmarks/parts/cuda_loop.py")
    ended = day.program(script, side, model, day.device, *map(str, sizes))
    if ended.returncode:
        raise RuntimeError(f"cuda_loop.py {side} {model}: {ended.stderr.strip()[-500:]}")
    loss, rate = map(float, ended.stdout.split()[-2:])
    return loss, rate


def harness(day: Day) -> Found:
    """Compare the suite with loops by hand, synchronised and free-running, in one pair of drawn order."""
    yield from _pairs(day, 1, "gpu-day")


def more_pairs(day: Day) -> Found:
    """Compare the suite with loops by hand in more pairs, and with --sync span."""
    found: Facts = {}
    for part in _pairs(day, 1 if day.options.rehearse else 2, "gpu-day-more"):
        found |= part
        yield part
    yield waiting(day, found)


def _pairs(day: Day, pairs: int, label: str) -> Found:
    for model in LOOPS:
        rates: dict[str, list[float]] = {"free": [], "synchronised": [], "suite": []}
        for number in range(pairs):
            for side in balanced(tuple(rates), number, f"{label}-{model}"):
                rates[side].append(loop(day, side, model)[1])
        yield {
            f"rates of {model}": rates,
            f"suite / synchronised loop: {model}": ratio(rates["suite"], rates["synchronised"]),
            f"free-running / synchronised loop: {model}": ratio(rates["free"], rates["synchronised"]),
        }


def waiting(day: Day, loops: Facts) -> Facts:
    """Return what the suite gains if it does not wait after each step, and the same over what the loops gain."""
    name = "gain by --sync span / gain of the free loop: {}"
    if day.options.rehearse:
        return dict.fromkeys(map(name.format, LOOPS), REHEARSED)
    words = ("--target", "bare-metal", "--scenario", "synthetic", *day.models(*LOOPS), *day.steps(500, 100))
    rates = {sync: about(day.run(f"C-{sync}", *words, "--sync", sync))["rates"] for sync in ("step", "span")}
    found: Facts = {"rates by --sync": rates}
    for model in LOOPS:
        gain = rates["span"][f"{model} on bare-metal"] / rates["step"][f"{model} on bare-metal"]
        found[f"--sync span / --sync step: {model}"] = gain
        found[name.format(model)] = gain / loops[f"free-running / synchronised loop: {model}"]
    return found
