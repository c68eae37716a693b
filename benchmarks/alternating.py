"""Measure what the alternating design costs, and what it saves, on this machine.

    python benchmarks/alternating.py waiting --target container --target vm --blocks 5
    python benchmarks/alternating.py designs --target container --blocks 20 --model alexnet --neighbour 20
    python benchmarks/alternating.py identical --blocks 40 --model resnet50
    python benchmarks/alternating.py injured --blocks 7

``waiting``: whether a job that waits costs the one whose turn it is. One job on bare metal takes ``--rounds`` bursts
alone, and as many while a job of the target waits beside it, opened and warmed up for them; which comes first is drawn
for each block. Prints the ratio of throughputs (beside over alone) with its 95 % interval, what the waiting one took
(its CPU seconds, as the host counts them, over the seconds of the other's bursts), and the page faults of a burst.

``designs``: sequential and alternating trials of the same targets in the same blocks (``bench run --design both``, into
``--out``). Prints both ratios, the standard deviation of a block's log ratio, the seconds of a block in either design,
and the minutes until the interval is within 2 %, as they follow from these. What turns save is what the machine's
weather costs: with ``--neighbour S`` another load takes 4 ms of every 100 from each CPU for spells of S seconds on
average, and rests as long.

``identical``: bare metal against itself, in turns (``bench run --aa``, into ``--out``). Prints the ratio, its verdict,
the deviation, and how often an interval of half as many blocks covers what is true: that of random halves of the
blocks, of which the truth is 1; and that of blocks drawn with replacement, of which it is the centre of all.

``injured``: bare metal against the same with a quota of 90 %, in turns. Prints what is found of it, what is known (the
quota over the share of its CPUs that the job uses without one), and the seconds from the first trial to the last.

All print JSON.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from parts.neighbour import neighbour

from analysis.compare.contrast_kinds import AGAIN, RATIO
from analysis.compare.contrasts import all_ratios, form
from analysis.compare.pairing import pair, plain, to_baseline, with_variants
from analysis.load.metrics import METRICS
from analysis.load.records import load
from analysis.statistics.margins import log_difference
from analysis.statistics.ratios import Location, Samples, judge, locate
from commands.run.prepare import Ready, observing, ready
from commands.selftest import measure
from provisioning.metrics.accounting import HostMeter
from scenarios.events import Silent
from scenarios.training import Synthetic
from suite.interfaces import TurnTaker
from suite.job.ablations import properties_of
from suite.plan import Trial, balanced
from suite.records.headers import headers
from suite.records.record import Turn
from suite.request.repetitions import MARGIN
from suite.request.request import RunRequest
from suite.results.store import Run
from suite.targets import BASELINE, TARGETS

REPOSITORY = Path(__file__).parents[1]
WITHIN = 0.02
QUOTA = "cpu-quota-10"
DRAWS = 2000
(THROUGHPUT,) = (metric for metric in METRICS if metric.name == "throughput")


def main() -> None:
    options = parse()
    measures = {"waiting": waiting, "designs": designs, "identical": identical, "injured": injured}
    print(json.dumps(list(measures[options.what](options)), indent=2))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("waiting", "designs", "identical", "injured"))
    parser.add_argument("--target", action="append", choices=TARGETS, help="repeatable; default: container")
    parser.add_argument("--engine", default="runc")
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--blocks", type=int, default=10, help="at least 2 (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--burst-steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--neighbour", type=float, metavar="S", help="mean seconds of a load beside it; default: none")
    parser.add_argument("--out", type=Path, default=Path("results/alternating"), help="directory of the run")
    options = parser.parse_args()
    if options.blocks < 2:
        parser.error("--blocks must be at least 2: one ratio has no interval")
    options.target = options.target or ["container"]
    return options


def asked(options: argparse.Namespace, design: str) -> dict[str, Any]:
    same = ("engine", "profile", "blocks", "rounds", "burst_steps", "seed")
    targets = tuple(dict.fromkeys((BASELINE, *options.target)))
    own = {"target": targets, "model": (options.model,), "design": design, "aa": True}
    return {**own, **{name: getattr(options, name) for name in same}}


def waiting(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield what a waiting job of each target costs a job on bare metal."""
    bursts = 2 * options.rounds * options.blocks
    made = ready(RunRequest.of({**asked(options, "alternating"), "rounds": bursts}), tell)
    made.prepare(tell)
    trials = {(trial.target, trial.replica): trial for trial in made.plan.trials() if trial.block == 0}
    for target in options.target:
        idle = trials[target, 1 if target == BASELINE else 0]
        logs, shares, faults = [], [], {True: 0, False: 0}
        with ExitStack() as stack:
            job, _ = opened(made, trials[BASELINE, 0], stack)
            for block in range(options.blocks):
                span_s = {}
                for beside in balanced([True, False], block, f"{options.seed}/{target}"):
                    tell(f"{target}, block {block}: {'beside a waiting job' if beside else 'alone'}")
                    turns, share = taken(job, options.rounds, made, idle if beside else None)
                    span_s[beside] = math.fsum(turn.span_s for turn in turns)
                    faults[beside] += sum(turn.faults for turn in turns)
                    shares += [] if share is None else [share]
                logs.append(math.log(span_s[False] / span_s[True]))
        yield {
            "waiting": target,
            "engine": options.engine,
            "blocks": options.blocks,
            **told(logs),
            "deviation": round(float(np.std(logs, ddof=1)), 5),
            "waiting_cpu_share": round(sum(shares) / len(shares), 6) if shares else None,
            "faults_per_burst": {
                "alone": faults[False] / options.blocks / options.rounds,
                "beside": faults[True] / options.blocks / options.rounds,
            },
        }


def taken(job: TurnTaker, count: int, made: Ready, waits: Trial | None) -> tuple[list[Turn], float | None]:
    """Return so many turns of a job, and the CPU time of the one that waits, as a share of them."""
    with ExitStack() as stack:
        idle = opened(made, waits, stack)[1] if waits else None
        before = idle.cpu_s() if idle else None
        turns = [job.turn() for _ in range(count)]
        after = idle.cpu_s() if idle else None
    if before is None or after is None:
        return turns, None
    return turns, (after - before) / math.fsum(turn.span_s for turn in turns)


def opened(made: Ready, trial: Trial, stack: ExitStack) -> tuple[TurnTaker, HostMeter]:
    """Open the target of a trial, and bring its job to its first turn."""
    instances = stack.enter_context(made.open_target(trial))
    job = Synthetic().turn_taker(trial, instances, Silent())
    stack.callback(job.kill)
    job.begin()
    return job, HostMeter([instance.node for instance in instances])


def designs(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield what either design says of each target, and how long it takes."""
    with neighbour(options.seed, options.neighbour) if options.neighbour else nullcontext():
        run(options, "both", dict.fromkeys((BASELINE, *options.target)))
    pairs = to_baseline(plain(measured(options.out)), [THROUGHPUT.column])
    for design, rows in pairs.groupby("design", observed=True):
        block_s = seconds_of_block(options.out, str(design))
        ratios = all_ratios(rows[rows["target"] != BASELINE], [THROUGHPUT])[THROUGHPUT.column]
        for (_, _, target, *_), found in ratios.items():
            logs = found[RATIO].to_numpy()
            needed = blocks_within(logs, WITHIN)
            yield {
                "design": design,
                "target": target,
                "blocks": len(logs),
                **told(logs),
                "deviation": round(float(np.std(logs, ddof=1)), 5),
                "block_s": round(block_s, 2),
                "blocks_to_2_percent": needed,
                "minutes_to_2_percent": round(needed * block_s / 60, 1),
            }


def identical(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield what the alternating design says of two identical targets."""
    run(options, "alternating", [BASELINE])
    (ratios,) = form(AGAIN, measured(options.out), [THROUGHPUT]).ratios[THROUGHPUT.column].values()
    logs = ratios[RATIO].to_numpy()
    place = located(logs)
    (verdict,) = judge([place], MARGIN, more_is_faster=True)
    draw = np.random.default_rng(options.seed)
    half = len(logs) // 2
    yield {
        "blocks": len(logs),
        **told(logs),
        "verdict": verdict and verdict.name,
        "deviation": round(float(np.std(logs, ddof=1)), 5),
        "blocks_to_2_percent": blocks_within(logs, WITHIN),
        "block_s": round(seconds_of_block(options.out, "alternating"), 2),
        "covered_by_halves": covered([draw.permutation(logs)[:half] for _ in range(DRAWS)], 0.0),
        "covered_by_bootstrap": covered([draw.choice(logs, half) for _ in range(DRAWS)], place.centre),
    }


def covered(draws: list[Samples], truth: float) -> float:
    """Return the share of the draws whose 95 % interval covers the truth."""
    places = [locate(draw) for draw in draws]
    ends = [place.interval for place in places if place and place.interval]
    return sum(low <= truth <= high for low, high in ends) / len(draws)


def injured(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield what is found of a quota that holds bare metal back by 10 %."""
    alone = {"target": (BASELINE,), "engine": None, "warmup_blocks": 0}
    made = ready(RunRequest.of({**asked(options, "alternating"), **alone}), tell)
    plan = made.plan.model_copy(update={"aa": False, "ablations": (QUOTA,)})
    begun_s = time.monotonic()
    with observing() as observer:
        measure(replace(made, plan=plan), Run(options.out), observer)
    elapsed_s = time.monotonic() - begun_s
    ok = measured(options.out)
    pairs = pair(ok[ok["ablation"] == QUOTA], plain(ok), [THROUGHPUT.column])
    (found,) = all_ratios(pairs, [THROUGHPUT])[THROUGHPUT.column].values()
    yield {
        "injury": QUOTA,
        "blocks": len(found),
        **told(found[RATIO].to_numpy()),
        "known": round(min(1.0, properties_of(QUOTA).cpu_share / used_share(options.out)), 4),
        "elapsed_s": round(elapsed_s, 1),
    }


def used_share(directory: Path) -> float:
    """Return the share of their CPUs' time that the jobs without an injury have used in their turns."""
    cpu_s = possible_s = 0.0
    for record in Run(directory).records():
        if record.ablation is None and record.alternation:
            for burst in record.alternation.bursts:
                cpu_s += burst.cpu_s or 0.0
                possible_s += burst.span_s * len(record.job.envelope.cpus)
    return cpu_s / possible_s


def run(options: argparse.Namespace, design: str, targets: Collection[str]) -> None:
    """Have the suite measure, with identical targets, or go on with a run that was interrupted."""
    words = ["run", "--out", str(options.out), "--aa", "--design", design]
    words += ["--engine", options.engine] if set(targets) - {BASELINE, "vm"} else []
    words += ["--model", options.model, "--profile", options.profile, "--blocks", str(options.blocks)]
    words += ["--rounds", str(options.rounds), "--burst-steps", str(options.burst_steps), "--seed", str(options.seed)]
    words += [word for target in targets for word in ("--target", target)]
    subprocess.run([sys.executable, "-m", "cli", *words], cwd=REPOSITORY, check=True, stdout=sys.stderr)


def measured(directory: Path) -> pd.DataFrame:
    """Return the trials that are ok."""
    trials = with_variants(load([directory]).trials)
    return trials[trials["ok"]]


def seconds_of_block(directory: Path, design: str) -> float:
    """Return the mean of how long the trials of a design take in a block."""
    found: dict[str, float] = {}
    for header in headers(directory):
        own = "alternating" if header.job.turns else "sequential"
        if own == design and not header.warm_up:
            block = header.trial_id.rpartition("-b")[2]
            found[block] = found.get(block, 0.0) + header.duration_s
    return sum(found.values()) / len(found)


def blocks_within(logs: Samples, share: float) -> int:
    """Return how many blocks of this deviation have an interval within plus or minus the share."""
    # The half width goes with the root of the number; the few blocks of a small sample are not modelled.
    return max(2, math.ceil(len(logs) * ((located(logs).half_width or 0.0) / log_difference(share)) ** 2))


def located(logs: Samples) -> Location:
    place = locate(logs)
    if place is None or place.interval is None:
        sys.exit("at least 2 blocks are needed")
    return place


def told(logs: Samples) -> dict[str, object]:
    place = located(logs)
    ends = [round(math.exp(end), 4) for end in place.interval or ()]
    return {"ratio": round(math.exp(place.centre), 4), "interval": ends}


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
