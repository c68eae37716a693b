"""Numbers and findings as text, the same in every table, figure and page."""

from collections.abc import Iterator, Mapping, Sequence

from analysis.compare.results import AblationEffect, Comparison, Effect, Estimate, Group, Job
from analysis.load.metrics import METRICS, SHARED, Metric
from analysis.statistics.ratios import Verdict
from analysis.warnings.conditions import notices
from suite.job.ablations import label_of
from suite.targets import BASELINE

_SOURCES = {"a/a": "A/A in {} blocks", "across-blocks": "bare metal across {} blocks"}


def number(value: float) -> str:
    """Return three significant digits, without an exponent where that is readable: ``0.0123``, ``4.56``, ``12345``."""
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.2e}"
    magnitude = int(f"{value:.2e}".split("e")[1])
    return f"{value:.{max(2 - magnitude, 0)}f}"


def times(value: float) -> str:
    """Return a ratio: three decimals near 1, where small differences matter."""
    return f"{value:.3f}" if 0.1 <= value < 10 else number(value)


def ends(interval: tuple[float, float]) -> str:
    """Return an interval: ``0.951 to 0.989``."""
    return f"{times(interval[0])} to {times(interval[1])}"


def seconds(value: float) -> str:
    """Return a difference with its sign, and decimals where they matter: ``+0.012``, ``-1.23``, ``+45.6``."""
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # + 0.0: no minus before a zero


def verdict(found: Verdict) -> str:
    """Return ``slower``, or ``undecided, +12`` with the number of blocks that would probably decide."""
    return found.name if found.more_blocks is None else f"{found.name}, +{found.more_blocks}"


def ratio(found: Effect | Estimate) -> str:
    """Return ``0.972x (0.951 to 0.989), slower`` as far as it is known; empty without a ratio."""
    if found.ratio is None:
        return ""
    interval = "" if found.interval is None else f" ({ends(found.interval)})"
    # One block has nothing to be decided by: that it says so in every cell helps nobody.
    judged = f", {verdict(found.verdict)}" if found.verdict and found.interval else ""
    return f"{times(found.ratio)}x{interval}{judged}"


def group_lines(group: Group) -> Iterator[str]:
    """Yield what is known of a group besides its targets.

    That is the noise of bare metal, whether the layers add up, and the ablations.
    """
    if group.job.scenario == SHARED:
        yield "the victim alone, with idle instances beside it: what it does beside aggressors is compared with this"
    floors: dict[str, list[str]] = {}
    for metric in group.metrics:
        if floor := group.noise_floors.get(metric.name):
            source = _SOURCES[floor.method].format(floor.blocks)
            floors.setdefault(source, []).append(f"{metric.name} {number(floor.share * 100)} %")
    for source, parts in floors.items():
        yield f"noise floor ({source}): {', '.join(parts)}"
    if group.aa:
        yield f"{BASELINE.replace('-', ' ')} against itself (A/A): {effects(group.aa, group.metrics)}"
    if group.interactions:
        yield f"container-vm against container times vm: {effects(group.interactions, group.metrics)}"
    yield from (ablation_line(one, group.metrics) for one in group.ablations)


def difference_lines(group: Group) -> Iterator[str]:
    """Yield what each target and bare metal differ in, which the marks below the target only count."""
    for summary in group.targets:
        if summary.differences:
            yield f"{summary.target} besides: {'; '.join(summary.differences)}"


def ablation_line(found: AblationEffect, metrics: Sequence[Metric] = METRICS) -> str:
    """Return ``switched in the same blocks: container, seccomp off: throughput 1.012x (0.998 to 1.026), undecided``."""
    notes = f" ({', '.join(found.notes)})" if found.notes else ""
    what = f"{found.target}, {label_of(found.ablation)}{notes}"
    return f"switched in the same blocks: {what}: {effects(found.effects, metrics)}"


def effects(found: Mapping[str, Effect], metrics: Sequence[Metric] = METRICS) -> str:
    """Return ``throughput 0.961x (0.950 to 0.970), slower; elapsed …``."""
    return "; ".join(f"{metric.name} {ratio(found[metric.name])}" for metric in metrics if metric.name in found)


def warmup_line(comparison: Comparison) -> str:
    """Say that warm-up trials were left out; empty if none was."""
    n = comparison.warmup_trials
    return f"{n} warm-up trial{'s' if n > 1 else ''} left out of everything" if n else ""


def overall_lines(comparison: Comparison, job: Job) -> Iterator[str]:
    """Yield the ratios of each target of a job over all models."""
    for found in comparison.overall:
        if found.job == job:
            notes = f" ({', '.join(found.notes)})" if found.notes else ""
            yield f"{found.target}{notes}: {effects(found.effects)}"


def reading_guide(comparison: Comparison) -> str:
    """Say what the ratios, intervals and verdicts of a comparison mean; empty if it has no ratio."""
    estimates = [e for group in comparison.groups for summary in group.targets for e in summary.estimates.values()]
    if all(estimate.ratio is None for estimate in estimates):
        return ""
    text = "x: times bare metal, geometric mean of the ratios inside blocks"
    if any(estimate.interval for estimate in estimates):
        text += (
            ", trimmed; a to b: its 95 % t interval; "
            f"equivalent: within {comparison.margin:.2g} of 1, slower or faster: beyond (two one-sided tests, Holm); "
            "+n: more blocks that would probably decide"
        )
    return text


def warning_lines(comparison: Comparison) -> list[str]:
    """Return each warning as one line of plain text, those of the same finding as one."""
    found = notices(comparison.warnings, comparison.jobs)
    return [f"warning: {one_line(f'{message}; {advice}')}" for message, advice in found]


def one_line(text: str) -> str:
    """Return the text with every run of white space as one blank."""
    return " ".join(text.split())
