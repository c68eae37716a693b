"""The results of the stages: facts, which are kept as they come, the bounds that they are held to, and a summary."""

import json
import tarfile
import time

from gpu_stages.day import REHEARSED, Day
from gpu_stages.stages import STAGES, TIMES_ITS_ESTIMATE

BOUNDS = {
    "trials that failed": (0.0, 0.0),
    "targets without libcuda": (0.0, 0.0),
    "models with other weights": (0.0, 0.0),
    "suite / synchronised loop: resnet50": (0.98, 1.02),
    "suite / synchronised loop: dcgan": (0.98, 1.02),
    "gain by --sync span / gain of the free loop: resnet50": (0.97, 1.03),
    "gain by --sync span / gain of the free loop: dcgan": (0.97, 1.03),
    "container / bare metal": (0.97, 1.03),
    "loss of tuned / loss of reference": (0.90, 1.10),
    "copy phase / probe: synthetic": (0.90, 1.10),
    "copy phase / probe: JPEG": (0.90, 1.10),
    "energy counter / integrated power": (0.95, 1.05),
    "sampled at 2 Hz / not sampled": (0.98, 1.02),
    "intruders that were missed": (0.0, 0.0),
    "trials that do not name an intruder": (0.0, 0.0),
    "verdicts that an intruder did not spoil": (0.0, 0.0),
    "wrong requests that were accepted": (0.0, 0.0),
    "spread of losses of equal trials": (0.0, 0.10),
    "trials in fp32 that may round to TF32": (0.0, 0.0),
    "loss in TF32 / loss in fp32": (0.90, 1.10),
}
"""The lowest and highest value that is accepted, by the name of the fact. A rehearsal judges counts alone."""


def judged(day: Day, stage: str) -> dict[str, bool]:
    """Return whether each bounded fact of a stage is inside of its bounds."""
    inside: dict[str, bool] = {}
    for name, value in day.facts[stage].items():
        if name not in BOUNDS or value == REHEARSED:
            continue
        low, high = BOUNDS[name]
        if not day.options.rehearse or high == 0:
            inside[name] = value is not None and low <= value <= high
    return inside


def is_good(day: Day) -> bool:
    """Return whether no stage has failed or was cut off, and every fact is inside of its bounds."""
    return all("whole" in facts and all(judged(day, name).values()) for name, facts in day.facts.items())


def keep(day: Day) -> None:
    """Write the facts so far: the state for a later call, and what goes back."""
    text = json.dumps({"rehearsal": day.options.rehearse, "bounds": BOUNDS, "stages": day.facts}, indent=1, default=str)
    for directory in (day.options.state, day.options.out):
        new = directory / "facts.json.new"
        new.write_text(text)
        new.replace(directory / "facts.json")


def write(day: Day) -> None:
    """Write what was found so far, with a summary and the records."""
    keep(day)
    lines = ["# GPU day" + (" (a rehearsal: no number means anything)" if day.options.rehearse else ""), ""]
    for name, facts in day.facts.items():
        title = str(STAGES[name].run.__doc__)
        ending = ""
        if "error" in facts:
            ending = f" FAILED: {facts['error']}"
        elif "whole" not in facts:
            ending = " CUT OFF"
        lines.append(f"- **{name}** ({facts['took_s']:.0f} s) {title}{ending}")
        for bound, inside in judged(day, name).items():
            lines.append(f"  - {'ok' if inside else 'NOT OK'}: {bound} = {facts[bound]}, bounds {BOUNDS[bound]}")
        lines += [f"  - {bound}: {REHEARSED}" for bound, value in facts.items() if value == REHEARSED]
    (day.options.out / "summary.md").write_text("\n".join(lines) + "\n")
    with tarfile.open(day.options.out / "records.tar.gz", "w:gz") as archive:
        for pattern in ("runs/*/*.json", "runs/*/trials/*.json"):
            for path in sorted(day.options.state.glob(pattern)):
                archive.add(path, path.relative_to(day.options.state))


def take(day: Day, name: str) -> None:
    """Run a stage, and write each of its facts as it comes."""
    begin_s = time.monotonic()
    day.stage_end_s = begin_s + TIMES_ITS_ESTIMATE * STAGES[name].seconds
    facts = day.facts[name] = {"took_s": 0.0}
    keep(day)  # a stage that is killed before its first fact comes last, too
    try:
        for part in STAGES[name].run(day):
            facts |= {**part, "took_s": time.monotonic() - begin_s}
            keep(day)
        facts["whole"] = True
    except Exception as error:  # noqa: BLE001 (a stage that fails must not end the day)
        facts["error"] = f"{type(error).__name__}: {error}"
    finally:
        facts["took_s"] = time.monotonic() - begin_s
        write(day)
