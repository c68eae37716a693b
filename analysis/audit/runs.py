"""A run as a whole, held against its plan, the clock and its manifest."""

import datetime
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pandas as pd

from analysis.audit.findings import Finding, Kind
from analysis.audit.turns import turns_of_blocks
from analysis.load.records import SharedJob
from analysis.warnings.conditions import ARM, changed_arms
from suite.differ import FactRule, differ, flattened
from suite.errors import RequestError
from suite.job.job import SEQUENTIAL
from suite.plan import Plan, Trial
from suite.records.headers import record_entries
from suite.results.quality import FILE as QUALITY
from suite.results.store import MANIFEST, PLAN, TRIALS, ListedFile, read_manifest
from suite.trial_names import record_file

_CHANGED = "the record, or the plan, was changed: run the trial again"
NO_PLAN = Kind(
    "no-plan",
    "named",
    "without its plan nobody can say whether trials are missing, or in their order",
)
NAME = Kind("file-name", advice="give the file back its name: the trial's, and .json")
FOREIGN = Kind("not-of-the-plan", advice="move the record back to its own run; bench compare takes several runs")
PLACE = Kind("place", advice=_CHANGED)
JOB = Kind("job", advice=_CHANGED)
SAME_TIME = Kind(
    "same-time", advice="neither trial had the machine alone: run them again, or see whether the host's clock was set"
)
APART = Kind(
    "block-apart",
    "named",
    "the host may have changed meanwhile: read the ratio with care, or run the block again",
)
ORDER = Kind(
    "block-order",
    "named",
    "trials that are tried again, and those of a resumed run, come late",
)
CHANGED = Kind(
    "changed",
    "named",
    "the trials of a run are samples of one thing: compare those of each state alone",
)
MIXED = Kind(
    "mixed-block",
    "named",
    "no ratio is formed between trials of two runs: merge runs of whole blocks",
)
EDITED = Kind("edited", advice="the file is not what the run has left: restore it from a copy, or run the trial again")
MISSING_FILES = Kind(
    "missing",
    "named",
    "results without some of their files are a selection: restore them, or say why",
)
UNLISTED = Kind(
    "unlisted",
    "named",
    "the run was killed, or is going on, or the files were put there: bench run continues it",
)
NO_MANIFEST = Kind(
    "no-manifest",
    "named",
    "the run was killed, or is going on: edits cannot be seen",
)

_PLACE = ("block", "position", "warm_up", "seed")
_ARM = ("target", "replica", "ablation", "aggressor")
_BLOCK = ["warm_up", "block", "model", "design"]
_CHOSEN = ("envelope.cpus", "envelope.node_cpus")
TOLERANCE_S = 2.0
"""Starts are whole seconds, and the clock of the day is corrected in small steps."""
ALWAYS_S = 60.0
"""The pause that is always allowed: attesting a slow guest, filling a page cache, pressing Ctrl-C and going on."""
UNTIMED_S = 6 * 3600.0
"""The pause that is allowed after a failed trial if no plan has its time limit."""
_READ_BYTES = 64 << 20
"""The size of a run up to which a comparison reads its files once more for their digests."""


def planned(run: Path, trials: pd.DataFrame, plan: Plan | None) -> Iterator[Finding]:
    """Yield the records that are not what the plan says, or whose files are not called after them."""
    due = {}
    jobs = {}
    if plan:
        due = {trial.trial_id: trial for trial in plan.trials()}
        jobs = {(job.model, job.design): SharedJob(job) for job in plan.jobs}
    if plan is None:
        yield NO_PLAN.at(run, f"{PLAN} is missing, or cannot be read")
    yield from _instances(trials, due.values())
    columns = ["path", "run_id", "trial_id", "job", *_PLACE, *_ARM]
    # As objects: a missing name is then None, whatever the column holds else.
    rows = trials[columns].astype(object).where(trials[columns].notna(), None)
    for path, run_id, name, job, *position in rows.itertuples(index=False, name=None):
        if Path(path).name != record_file(name):
            yield NAME.at(path, f"the record is of the trial {name}")
        if plan is None:
            continue
        if run_id != plan.run_id:
            yield FOREIGN.at(path, f"the record is of the run {run_id}, and the plan of {plan.run_id}")
            continue
        trial = due.get(name)
        if trial is None:
            yield FOREIGN.at(path, f"the plan has no trial {name}")
            continue
        wrong = list(_misplaced(trial, position))
        if wrong:
            yield PLACE.at(path, f"it is not where the plan has it: {', '.join(wrong)}")
        differences = _job_differences(job, jobs[trial.job.model, trial.job.design])
        if differences:
            yield JOB.at(path, f"its job is not that of the plan: {', '.join(differences)} differ")


def _misplaced(trial: Trial, position: Sequence[object]) -> Iterator[str]:
    """Yield in what the place and the arm of a record are not those of its planned trial."""
    recorded = dict(zip(_PLACE, position, strict=False))
    recorded["arm"] = tuple(position[len(_PLACE) :])
    for key, value in recorded.items():
        if value != getattr(trial, key):
            yield f"{key} {value} instead of {getattr(trial, key)}"


def _instances(trials: pd.DataFrame, plan: Collection[Trial]) -> Iterator[Finding]:
    """Yield the records that took turns among more or fewer instances than the plan has in their block."""
    taking = trials[trials["alternation"].notna()]
    due = Counter((trial.warm_up, trial.block, trial.job.model, trial.job.design) for trial in plan)
    if not due:
        return
    for path, alternation, *block in taking[["path", "alternation", *_BLOCK]].itertuples(index=False, name=None):
        if alternation.instances != due[tuple(block)]:
            instances = f"it took turns among {alternation.instances} instances, and the plan has {due[tuple(block)]}"
            yield PLACE.at(path, instances)


@lru_cache(maxsize=1000)
def _job_differences(recorded: SharedJob, planned: SharedJob) -> tuple[str, ...]:
    """Return the fields of a record's job that are not as planned, but for the CPUs that a node has chosen."""
    record, plan = (flattened(each.job.model_dump(mode="json")) for each in (recorded, planned))
    if plan.get("envelope.node_chosen"):
        rules = dict.fromkeys(_CHOSEN, FactRule(counts=len))
    else:
        rules = {}
    return tuple(fact.path for fact in differ(record, plan, rules) if fact.first is not None)


def course(run: Path, trials: pd.DataFrame, timeout_s: float | None) -> Iterator[Finding]:
    """Yield trials that overlap, lie far apart or are in another order, blocks of two runs, and arms that changed."""
    trials = trials.copy()  # in few pieces: pandas warns where columns are added to one of a hundred
    begun = pd.to_datetime(
        trials["started_at"],
        format="ISO8601",
        errors="coerce",
        utc=True,
    )
    begin_s = (begun - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    yield from turns_of_blocks(trials.assign(begin_s=begin_s), _BLOCK)
    taken_s = trials[["open_s", "elapsed_s", "close_s"]].sum(axis=1).mask(trials["block_s"].notna(), trials["block_s"])
    timed = trials.assign(begin_s=begin_s, taken_s=taken_s, end_s=begin_s + taken_s)
    timed = timed.sort_values(["warm_up", "block", "begin_s", "position"])
    # Trials that take turns overlap on purpose: the first stands for all of its block.
    first = timed["block_s"].notna() & ~timed.duplicated([*_BLOCK, "block_s"])
    timed = timed[(timed["design"] == SEQUENTIAL) | first]
    block = [timed["warm_up"], timed["block"]]
    before = timed.groupby(block, sort=False)[["end_s", "path", "ok", "position"]].shift()
    pause_s = timed["begin_s"] - before["end_s"]
    overlapping = pause_s < -TOLERANCE_S
    for overlap_s, *pair in zip(
        -pause_s[overlapping], timed["path"][overlapping], before["path"][overlapping], strict=True
    ):
        for path, other in (pair, pair[::-1]):
            yield SAME_TIME.at(path, f"it ran at the same time as {Path(other).stem}, for {overlap_s:.3g} s")
    untimed_s = (before["ok"] == False) * (timeout_s or UNTIMED_S)  # noqa: E712 (the first of a block has none before)
    bound_s = timed.groupby(block, sort=False)["taken_s"].transform("sum").clip(lower=ALWAYS_S) + untimed_s
    for key, pauses in pause_s[pause_s > bound_s].groupby(block):
        pause = datetime.timedelta(seconds=round(float(pauses.max())))
        yield APART.at(run, f"{_name(*key)}: up to {pause} h lie between its trials, more than they all take")
    for key, _ in timed[timed["position"] < before["position"]].groupby(["warm_up", "block"]):
        yield ORDER.at(run, f"{_name(*key)}: its trials began in another order than planned")
    changes: dict[str, dict[str, None]] = {}
    # Probes look at different facts, so that each is held against itself.
    for (_, target, *_), texts in changed_arms(trials[trials["ok"].astype(bool)], ("model", *ARM)):
        changes.setdefault(target, {}).update(dict.fromkeys(texts))
    for target, named in changes.items():
        yield CHANGED.at(run, f"{target} was not the same all the time: {'; '.join(named)}")
    if trials["run_id"].nunique() < 2:
        return
    for key, ids in trials["run_id"].astype(object).groupby([trials["warm_up"], trials["block"]]):
        names = sorted(ids.unique())
        if len(names) > 1:
            yield MIXED.at(run, f"{_name(*key)} is of the runs {', '.join(names)}")


def _name(warm_up: object, block: object) -> str:
    return f"{'warm-up ' if warm_up else ''}block {block}"


def files(run: Path, *, every_digest: bool) -> Iterator[Finding]:
    """Yield files that were edited, added or taken away. Sizes are always compared, digests where that is quick."""
    try:
        manifest = read_manifest(run)
    except RequestError as error:
        yield EDITED.at(run, error.message)
        return
    if manifest is None:
        yield NO_MANIFEST.at(run, f"there is no {MANIFEST}")
        return
    sizes = _sizes(run)
    digests = every_digest or sum(sizes.values()) <= _READ_BYTES
    for name, size_bytes in sizes.items():
        listed = manifest.files.get(name)
        if listed and (listed.size_bytes != size_bytes or (digests and ListedFile.of(run / name) != listed)):
            # Nobody can say what the trials of an edited plan were to be.
            yield EDITED.at(run if name == PLAN else run / name, f"{name} is not the file that {MANIFEST} lists")
    for kind, names, text in (
        (MISSING_FILES, manifest.files.keys() - sizes, f"listed in {MANIFEST}, and gone"),
        (UNLISTED, sizes.keys() - manifest.files, f"not listed in {MANIFEST}"),
    ):
        if names:
            first = os.path.basename(min(names))  # noqa: PTH119 (a name, and no path here)
            yield kind.at(run, f"{len(names)} files are {text} (the first: {first})")


def _sizes(run: Path) -> dict[str, int]:
    """Return the size of the plan, quality and each record. A link in the place of a file does not count."""
    records = (entry for entry in record_entries(run) if entry.is_file(follow_symlinks=False))
    paths = (run / PLAN, run / QUALITY)
    sizes = {}
    for path in paths:
        if path.is_file() and not path.is_symlink():
            sizes[path.name] = path.stat().st_size
    return sizes | {f"{TRIALS}/{entry.name}": entry.stat().st_size for entry in records}
