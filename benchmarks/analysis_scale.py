"""Measure the time and the memory that listing, exporting and comparing many records takes.

``python benchmarks/analysis_scale.py``

Writes synthetic records of the ``paper`` profile (100 measured steps each), and in a process of its own per size does
what ``bench results list``, ``compare`` and ``export`` do. Prints of each seconds, microseconds per record, the ratio
to merely reading the files, which tells what the machine does from what the suite does, and the peak of memory until
its end. Growth is linear when the time per record stays the same.
"""

import argparse
import datetime
import json
import multiprocessing
import random
import re
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from analysis.audit.audit import audited
from analysis.compare.comparison import compare
from analysis.load.records import load
from analysis.report.export import FORMATS, steps_tables, trials_table
from analysis.report.export import write as export
from analysis.report.rows import as_json
from suite.job.envelope import GIB, Envelope
from suite.job.job import Job
from suite.job.profiles import PROFILES
from suite.plan import Plan, Trial
from suite.records.environment import Environment, Environments
from suite.records.record import Outcome, Steps, Timeline, TrialRecord
from suite.records.usage import Conditions, Resources, Usage
from suite.registries import WORKLOADS
from suite.results.store import Run
from suite.results.summary import summarise
from suite.targets import TARGETS, VMS

BEGUN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
SPACING = datetime.timedelta(seconds=150)
SLOWDOWN = {"bare-metal": 1.0, "container": 1.01, "vm": 1.1, "container-vm": 1.12}


def record(trial: Trial, noise: random.Random) -> TrialRecord:
    """Make a record as a real trial leaves it, with random step times."""
    assert trial.job.sizes  # noqa: S101 (for the type checker: the plan trains)
    seconds = [SLOWDOWN[trial.target] * noise.lognormvariate(0, 0.05) for _ in range(trial.job.sizes.steps)]
    place = Environment(
        kernel="6.18.0",
        cpus=[0, 1],
        memory_bytes=trial.job.envelope.memory_bytes,
        threads=trial.job.envelope.threads,
        userland_sha256="0" * 64,
        cpu_model="a CPU",
        cpu_flags=[f"flag{number}" for number in range(120)],
        mitigations={f"flaw{number}": "Mitigation: some" for number in range(15)},
        torch_cpu_capability="AVX2",
    )
    inside = replace(place, accelerator="kvm", hypervisor="KVM") if trial.target in VMS else place
    return TrialRecord(
        **trial.model_dump(include=set(TrialRecord.model_fields)),
        suite_version="0",
        started_at=BEGUN.isoformat(),
        outcome=Outcome(status="ok"),
        throughput_per_s=trial.job.sizes.batch * len(seconds) / sum(seconds),
        elapsed_s=sum(seconds) + 5,
        timeline=Timeline(
            launch_s=1, imports_s=1, build_s=1, warmup_s=1, measured_s=sum(seconds), teardown_s=1, exit_s=0
        ),
        conditions=Conditions(interval_s=sum(seconds) + 5, steal_s=0, other_cpu_s=0),
        resources=Resources(serving=Usage(cpu_s=sum(seconds)), worker=Usage(cpu_s=sum(seconds))),
        open_s=0.5,
        opening={"tree": 0.5},
        clock_ratio=1.0,
        steps=Steps(
            elapsed_s=seconds, data_s=[each / 4 for each in seconds], compute_s=[each * 0.75 for each in seconds]
        ),
        environment=Environments(host=place, target=inside),
    )


def write(directory: Path, count: int) -> None:
    """Write ``count`` records of whole blocks, as the files of a run."""
    per_block = len(TARGETS) * len(WORKLOADS.names())
    envelope = Envelope(cpus=(0, 1), memory_bytes=8 * GIB, threads=2)
    profile = PROFILES["paper"]
    jobs = tuple(
        Job(
            scenario="synthetic",
            model=model,
            data="synthetic",
            profile=profile.name,
            sizes=profile.sizes_of(model),
            envelope=envelope,
        )
        for model in WORKLOADS
    )
    plan = Run(directory).begin(Plan(jobs=jobs, targets=TARGETS, blocks=-(-count // per_block), trial_timeout_s=60))
    trials = directory / "trials"
    trials.mkdir(parents=True)
    noise = random.Random(0)  # noqa: S311
    text = {}
    for number, trial in zip(range(count), plan.trials(), strict=False):
        # Making a record takes longer than reading one: those of the first block serve again under other names.
        if number < per_block:
            text[trial.job.model, trial.target] = record(trial, noise).model_dump_json(indent=1)
        made = text[trial.job.model, trial.target].replace('-b000"', f'-b{trial.block:03d}"')
        made = made.replace('"block": 0,', f'"block": {trial.block},').replace('"seed": 0,', f'"seed": {trial.seed},')
        made = re.sub(r'"position": \d+,', f'"position": {trial.position},', made, count=1)
        begun = BEGUN + number * SPACING
        made = made.replace(f'"{BEGUN.isoformat()}"', f'"{begun.isoformat()}"', 1)
        (trials / f"{trial.trial_id}.json").write_text(made)


def measure(directory: Path) -> dict[str, object]:
    """Return the seconds of each command, and the peak of memory until its end, in this process."""
    seconds: dict[str, float] = {}
    peak_mib: dict[str, int] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - begin
        peak_mib[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

    with timed("read"):
        for path in sorted((directory / "trials").iterdir()):
            path.read_bytes()
    with timed("list"):
        summarise(directory)
    with timed("load"):
        records = load([directory])
    with timed("audit"):
        checked = audited(records)
    with timed("compare"):
        as_json(compare(checked))
    for form in FORMATS:
        with timed(f"export {form}"):
            export(iter([trials_table(records)]), form, directory / f"trials.{form}")
    with timed("export steps parquet"):
        export(steps_tables(records, []), "parquet", directory / "steps.parquet")
    count = len(records.trials)
    return {
        "records": count,
        "load_and_audit_s": round(seconds["load"] + seconds["audit"], 2),
        "load_and_compare_s": round(seconds["load"] + seconds["compare"], 2),
        **{
            name: {
                "s": round(value, 2),
                "us_per_record": round(value / count * 1e6, 1),
                "of_reading": round(value / seconds["read"], 2),
                "peak_mib": peak_mib[name],
            }
            for name, value in seconds.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[12_500, 25_000, 50_000, 100_000])
    for count in parser.parse_args().records:
        with tempfile.TemporaryDirectory() as place, multiprocessing.get_context("spawn").Pool(1) as pool:
            write(Path(place) / "run", count)
            print(json.dumps(pool.apply(measure, (Path(place) / "run",)), indent=1), flush=True)


if __name__ == "__main__":
    main()
