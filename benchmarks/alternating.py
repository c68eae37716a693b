"""Measure what the alternating design costs, and what it saves, on this machine.

    python benchmarks/alternating.py waiting --target container --target vm --blocks 5
    python benchmarks/alternating.py designs --target container --blocks 20 --model alexnet

``waiting``: whether a job that waits costs the one whose turn it is. On bare metal one job takes the same bursts
alone, and while a job of each target waits beside it, warmed up; which comes first is drawn for each block. Prints the
ratio of throughputs (beside over alone) with its 95 % interval, and what the waiting one took: its CPU seconds, as the
host counts them, over the seconds of the other's bursts.

``designs``: sequential and alternating trials of the same targets in the same blocks (``bench run --design both``, into
``--out``). Prints both ratios, the standard deviation of a block's log ratio, the seconds of a block in either design,
and the minutes until the interval is within 2 %, as they follow from these.

Both print JSON.
"""

import argparse
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))  # as a script, this file is not part of the installed suite

from analysis.compare.effects import RATIO, ratios_of  # noqa: E402
from analysis.compare.pairing import plain, to_baseline, with_variants  # noqa: E402
from analysis.load.metrics import METRICS  # noqa: E402
from analysis.load.records import load  # noqa: E402
from analysis.statistics.ratios import Location, Samples, locate  # noqa: E402
from commands.run.prepare import Ready, ready  # noqa: E402
from provisioning.metrics.accounting import Meter  # noqa: E402
from scenarios.events import Silent  # noqa: E402
from scenarios.synthetic import Synthetic  # noqa: E402
from suite.interfaces import TurnTaker  # noqa: E402
from suite.plan import Trial  # noqa: E402
from suite.records.headers import headers  # noqa: E402
from suite.request.request import RunRequest  # noqa: E402
from suite.targets import BASELINE, TARGETS  # noqa: E402

WITHIN = 0.02


def main() -> None:
    options = parse()
    found = waiting(options) if options.what == "waiting" else designs(options)
    print(json.dumps(list(found), indent=2))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("waiting", "designs"))
    parser.add_argument("--target", action="append", choices=TARGETS, help="repeatable; default: container")
    parser.add_argument("--engine", default="runc")
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--blocks", type=int, default=10, help="at least 2 (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--burst-steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/alternating"), help="directory of the run of designs")
    options = parser.parse_args()
    if options.blocks < 2:
        parser.error("--blocks must be at least 2: one ratio has no interval")
    options.target = options.target or ["container"]
    return options


def asked(options: argparse.Namespace, design: str) -> dict[str, Any]:
    return {
        "target": tuple(dict.fromkeys((BASELINE, *options.target))),
        "engine": options.engine,
        "model": (options.model,),
        "profile": options.profile,
        "blocks": options.blocks,
        "rounds": options.rounds,
        "burst_steps": options.burst_steps,
        "seed": options.seed,
        "design": design,
        "aa": True,
    }


def waiting(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield what a waiting job of each target costs a job on bare metal."""
    made = ready(RunRequest.of(asked(options, "alternating")), tell)
    made.prepare(tell)
    order = random.Random(options.seed)  # noqa: S311 - an order, not a secret
    for target in options.target:
        logs, shares = [], []
        for block in range(options.blocks):
            trials = {trial.target: trial for trial in made.plan.trials_of(block)}
            spent: dict[bool, list[float]] = {}
            for beside in order.sample([True, False], 2):
                tell(f"{target}, block {block}: {'beside a waiting job' if beside else 'alone'}")
                spans, share = bursts(made, trials[BASELINE], trials[target] if beside else None)
                spent[beside] = spans
                shares += [share] if beside else []
            pairs = zip(spent[False], spent[True], strict=True)
            logs.append(sum(math.log(alone_s / beside_s) for alone_s, beside_s in pairs) / options.rounds)
        yield {
            "waiting": target,
            "blocks": options.blocks,
            **told(locate(logs)),
            "deviation": round(float(np.std(logs, ddof=1)), 5),
            "waiting_cpu_share": round(sum(shares) / len(shares), 5),
        }


def bursts(made: Ready, trial: Trial, waits: Trial | None) -> tuple[list[float], float]:
    """Return the seconds of each burst of a job, and the CPU time of the one that waits, as a share of them."""
    turns = trial.job.turns
    assert turns is not None  # noqa: S101 (as it was asked for)
    with ExitStack() as stack:
        idle = opened(made, waits, stack)[1] if waits else None
        job, _ = opened(made, trial, stack)
        before = idle.cpu_s() if idle else None
        spans = [job.turn().span_s for _ in range(turns.rounds)]
        after = idle.cpu_s() if idle else None
        job.end()
    share = 0.0 if before is None or after is None else (after - before) / sum(spans)
    return spans, share


def opened(made: Ready, trial: Trial, stack: ExitStack) -> tuple[TurnTaker, Meter]:
    """Open the target of a trial, and bring its job to its first turn."""
    instances = stack.enter_context(made.open_target(trial))
    job = Synthetic().turn_taker(trial, instances, Silent())
    stack.callback(job.kill)
    job.begin()
    return job, Meter([instance.node for instance in instances])


def designs(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield what either design says of each target, and how long it takes."""
    words = ["run", "--out", str(options.out), "--aa", "--design", "both", "--engine", options.engine]
    words += ["--model", options.model, "--profile", options.profile, "--blocks", str(options.blocks)]
    words += ["--rounds", str(options.rounds), "--burst-steps", str(options.burst_steps), "--seed", str(options.seed)]
    words += [word for target in dict.fromkeys((BASELINE, *options.target)) for word in ("--target", target)]
    subprocess.run([sys.executable, "-m", "cli", *words], cwd=REPOSITORY, check=True)
    trials = with_variants(load([options.out]).trials)
    ok = plain(trials[trials["ok"]])
    (throughput,) = (metric for metric in METRICS if metric.name == "throughput")
    pairs = to_baseline(ok, [throughput.column])
    for design, rows in pairs.groupby("design", observed=True):
        block_s = seconds_of_block(options.out, str(design))
        for (_, _, target), found in ratios_of(rows[rows["target"] != BASELINE], throughput).items():
            logs = found[RATIO].to_numpy()
            needed = blocks_within(logs, WITHIN)
            yield {
                "design": design,
                "target": target,
                "blocks": len(logs),
                **told(locate(logs)),
                "deviation": round(float(np.std(logs, ddof=1)), 5),
                "block_s": round(block_s, 2),
                "blocks_to_2_percent": needed,
                "minutes_to_2_percent": round(needed * block_s / 60, 1),
            }


def seconds_of_block(run: Path, design: str) -> float:
    """Return the mean of how long the trials of a design take in a block."""
    found: dict[str, float] = {}
    for header in headers(run):
        own = "alternating" if (header.job.get("turns") or {}) else "sequential"
        if own == design and not header.warm_up:
            block = header.trial_id.rpartition("-b")[2]
            found[block] = found.get(block, 0.0) + header.duration_s
    return sum(found.values()) / len(found)


def blocks_within(logs: Samples, share: float) -> int:
    """Return how many blocks of this deviation have an interval within plus or minus the share."""
    place = locate(logs)
    if place is None or place.half_width is None:
        sys.exit("at least 2 blocks are needed")
    # The half width goes with the root of the number; the few blocks of a small sample are not modelled.
    return max(2, math.ceil(len(logs) * (place.half_width / math.log1p(share)) ** 2))


def told(place: Location | None) -> dict[str, object]:
    if place is None or place.interval is None:
        sys.exit("at least 2 blocks are needed")
    return {
        "ratio": round(math.exp(place.centre), 4),
        "interval": [round(math.exp(end), 4) for end in place.interval],
    }


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
