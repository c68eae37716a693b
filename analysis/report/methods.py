"""How records were measured, for the methods section of a paper, and their testbed as a table.

Each sentence is made from the plans and records: design, blocks, orders, workloads, envelope, intervals, multiplicity,
failures, substitutes, versions. One that does not hold for all runs names those that it holds for.
"""

from collections.abc import Iterator, Mapping

from analysis.compare.results import Comparison
from analysis.load.plans import plan_of
from analysis.load.records import Records
from analysis.report.elements import Cell, Element, Head, Heading, Line, Table
from analysis.report.formatting import margins, percent
from analysis.report.provenance import Provenance, provenance
from analysis.statistics.power import TRIM
from analysis.statistics.ratios import CONFIDENCE
from analysis.statistics.sequential import TO_SPEND
from suite.job.envelope import GIB, format_cpu_list
from suite.job.job import Job, TimeSlices
from suite.plan import Plan
from suite.targets import BASELINE
from suite.units import count

_MOST_NAMED = 3
"""The most runs that a sentence names; of more it says how many."""
_HOST_FACTS = {
    "CPU": "cpu_model",
    "caches, bytes": "cpu_caches",
    "SMT": "smt",
    "frequency governor": "cpu_governor",
    "memory": "memory_bytes",
    "GPUs": "gpus",
    "kernel": "kernel",
    "hypervisor of the host": "hypervisor",
    "control groups, version": "cgroup_version",
    "transparent huge pages": "transparent_hugepages",
    "clock source": "clocksource",
    "mitigations": "mitigations",
    "disk": "disk",
}
_TARGET_FACTS = {
    "userland, SHA-256 begins": "userland_sha256",
    "Python": "python",
    "C library": "libc",
    "PyTorch": "torch",
    "vector instructions": "torch_cpu_capability",
    "CUDA": "cuda",
    "cuDNN": "cudnn",
}
_LAYER_FACTS = {"engine": "container_engine", "virtualisation of the CPU": "accelerator", "kernel": "kernel"}
"""The facts of each target but bare metal, where they are not the host's."""
_DIGITS = 16
"""The digits of a digest that fit a line of a table."""
_UNHARMED = "Not affected"
"""The end of what the kernel says of a vulnerability that the CPU does not have."""


def methods_document(records: Records, comparison: Comparison) -> Iterator[Element]:
    """Yield the methods as a paragraph, and the testbed: the facts of each host, and of the targets on it."""
    origins = provenance(records)
    yield Heading("Methods", rank=2)
    yield Line(" ".join(_sentences(records, comparison, origins)))
    yield Heading("Testbed", rank=2)
    yield _testbed(origins)


def _sentences(records: Records, comparison: Comparison, origins: tuple[Provenance, ...]) -> Iterator[str]:
    names: dict[str, dict[str, None]] = {}
    planned = 0
    for run in records.directories:
        plan = plan_of(run)
        if plan is None:
            continue
        planned += 1
        trials = records.trials[records.trials["run_id"] == plan.run_id]
        for sentence in _of_plan(plan, trials["block"].nunique()):
            names.setdefault(sentence, {})[run.resolve().name] = None
    for sentence, runs in names.items():
        yield _limited(sentence, [*runs], planned)
    yield from _of_numbers(records, comparison)
    versions = dict.fromkeys(version for origin in origins for version in origin.suite_versions)
    yield f"The records were made by virtbench {' and '.join(versions)}."


def _limited(sentence: str, runs: list[str], planned: int) -> str:
    """Return a sentence with the runs that it holds for, where these are not all."""
    if len(runs) == planned:
        return sentence
    where = ", ".join(runs)
    if len(runs) > _MOST_NAMED:
        where = f"{len(runs)} of {planned} runs"
    return f"{sentence.removesuffix('.')} ({where})."


def _of_plan(plan: Plan, blocks: int) -> Iterator[str]:
    """Yield what the plan of a run says of its design, blocks, orders, workloads and envelope."""
    twice = f", {BASELINE} twice" if plan.aa else ""
    yield f"A block held one trial of each target ({', '.join(plan.targets)}{twice}), close in time."
    for job in plan.jobs:
        yield _design(job)
    yield f"{count(blocks, 'block')} were measured, {_ending(plan)}."
    if plan.warmup_blocks:
        yield f"{count(plan.warmup_blocks, 'warm-up block')} before them counted in no estimate."
    if plan.ablations:
        yield f"In the same blocks, one property at a time was changed: {', '.join(plan.ablations)}."
    yield f"Weights and data were drawn by the seed {plan.seed}."
    if plan.order_seed is not None:
        yield (
            "Blocks came in pairs, an order and its reverse, by Williams designs (1949) that were drawn by the seed "
            f"{plan.order_seed}."
        )
    for job in plan.jobs:
        yield _workload(job)
    yield _envelope(plan.job)


def _design(job: Job) -> str:
    if isinstance(job.turns, TimeSlices):
        return f"Its targets were open at once, and its command ran on them in turns of {job.turns.slice_s:g} s."
    if job.turns:
        steps = count(job.turns.burst_steps, "step")
        return f"Its targets were open at once and took turns of {steps}, in {count(job.turns.rounds, 'round')}."
    return "A trial was one job, launched and finished alone, and was the sample; its steps were not."


def _ending(plan: Plan) -> str:
    """Return what decided the number of blocks."""
    repetitions = plan.request.repetitions if plan.request else None
    if plan.detection:
        return f"planned once to detect a difference of {percent(plan.detection.difference)} with a power of 80 %"
    if repetitions and repetitions.decides:
        return (
            "after which every comparison had a verdict or the budget was spent "
            f"(looks by alpha spending, {percent(TO_SPEND)} on each side; Lan and DeMets 1983)"
        )
    if repetitions and repetitions.half_width:
        return f"until intervals were within {percent(repetitions.half_width)} to each side (Chow and Robbins 1965)"
    return f"of {plan.blocks} that were fixed before"


def _workload(job: Job) -> str:
    parts = [f"{job.model} in the scenario {job.scenario}, {job.data} data, profile {job.profile}"]
    if job.sizes:
        sizes = job.sizes
        parts.append(f"recipe {job.recipe}, {sizes.batch} {job.unit} a step and device")
        if sizes.image_px:
            parts.append(f"images of {sizes.image_px} px")
        measured = f"{count(sizes.epochs, 'epoch')}" if sizes.epochs else count(sizes.steps, "step")
        parts.append(f"{measured} measured after {count(sizes.warmup_steps, 'warm-up step')}")
    return f"The job was {', '.join(parts)}."


def _envelope(job: Job) -> str:
    envelope = job.envelope
    pinned = f"the time of {count(len(envelope.cpus), 'CPU')}"
    if envelope.pinning is None:
        pinned = f"{count(len(envelope.cpus), 'pinned CPU')} ({format_cpu_list(envelope.cpus)})"
    return (
        f"Every target had {pinned}, {envelope.memory_bytes / GIB:.3g} GiB of memory and "
        f"{count(envelope.threads, 'thread')}, and attested them from inside, with one userland."
    )


def _of_numbers(records: Records, comparison: Comparison) -> Iterator[str]:
    """Yield how ratios, intervals and verdicts are formed, and what restricts them."""
    yield (
        f"Ratios were formed inside a block, over {BASELINE}. A typical ratio is the mean of their logarithms, "
        f"{percent(TRIM)} trimmed at each end from five blocks on, with the {percent(CONFIDENCE)} interval of Tukey "
        "and McLaughlin (1963); an expected ratio is that of the untrimmed mean times. "
        f"Verdicts come from two one-sided tests (Schuirmann 1987) at a margin of {margins(comparison)}, corrected for "
        "all comparisons of a job (Holm 1979); none is given for fewer than five blocks."
    )
    failed = int((~records.trials["ok"].astype(bool)).sum())
    yield f"{failed or 'None'} of {count(len(records.trials), 'trial')} failed."
    names: dict[str, None] = {}
    for summary in comparison.summaries:
        names |= dict.fromkeys(f"{substitute} on {summary.target}" for substitute in summary.substitutes)
    if names:
        yield f"Substitutes change what these numbers mean: {', '.join(names)}."


def _testbed(origins: tuple[Provenance, ...]) -> Table:
    """Return the facts of each host as a column; runs with the same facts share one."""
    columns: dict[str, dict[str, str]] = {}
    for origin in origins:
        facts = _facts(origin.environments)
        if facts not in columns.values():
            name = origin.environments.get("host", {}).get("hostname", origin.name)
            columns[f"{name}, {origin.name}" if name in columns else name] = facts
    names = dict.fromkeys(name for facts in columns.values() for name in facts)
    rows: list[tuple[Head, tuple[Cell, ...]]] = []
    for name in names:
        rows.append((Head(name), tuple(facts.get(name) for facts in columns.values())))
    heads = tuple(Head(name, wraps=True) for name in columns)
    return Table("fact", "host", heads, tuple(rows), caption="Hosts, and the targets on them")


def _facts(environments: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    host = environments.get("host", {})
    targets = {name: facts for name, facts in environments.items() if name != "host"}
    inside = next(iter(targets.values()), {})
    facts = _labelled(host, _HOST_FACTS) | _labelled(inside, _TARGET_FACTS)
    for target, of_target in targets.items():
        if target != BASELINE:
            for label, text in _labelled(of_target, _LAYER_FACTS).items():
                if text not in ("none", host.get(_LAYER_FACTS[label])):
                    facts[f"{target}: {label}"] = text
    return facts


def _labelled(facts: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return facts by their labels, without those that nobody could tell."""
    labelled = {}
    for label, name in names.items():
        if name in facts:
            labelled[label] = _readable(name, facts[name])
    return labelled


def _readable(name: str, text: str) -> str:
    if name == "memory_bytes":
        return f"{int(text) / GIB:.3g} GiB"
    if name == "userland_sha256":
        return text[:_DIGITS]
    if name == "mitigations":
        return "; ".join(part for part in text.split("; ") if not part.endswith(_UNHARMED))
    return text
