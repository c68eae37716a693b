"""Numbers and findings as text, the same in every table, figure and page."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from analysis.compare.results import BurstVariation, Comparison, Contrast, Effect, Group, Measured, known_first
from analysis.load.metrics import METRICS, Metric
from analysis.statistics.counts import MeanDifference
from analysis.statistics.failures import Failures
from analysis.statistics.power import POWER
from analysis.statistics.ratios import FAILS_MORE, SIGNIFICANCE, Verdict, VerdictName
from analysis.statistics.sequential import LEAST_BLOCKS
from analysis.statistics.tails import SlowTrials
from analysis.warnings.types import notices
from suite.records.record import EPOCH_METRICS
from suite.targets import TARGETS, base_of
from suite.units import count, number

_SOURCES = {"a/a": "A/A in {}", "across-blocks": "{base} across {}"}


def times(value: float) -> str:
    """Return a ratio: three decimals near 1, where small differences matter."""
    return f"{value:.3f}" if 0.1 <= value < 10 else number(value)


def brief(ratio: float) -> str:
    """Return a ratio in the width that a line has for it."""
    return times(ratio) if ratio >= 0.1 else f"{ratio:.2g}"


TOO_NOISY = "too noisy to say"
_WIDEST = 100.0
"""Two ends of an interval that are further apart than this have no meaning as numbers."""
_REACH = 1000
"""More blocks than these nobody measures."""


def sensible(interval: tuple[float, float]) -> bool:
    """Return whether the ends of an interval of a ratio mean something."""
    return interval[1] <= _WIDEST * interval[0]


def ends(interval: tuple[float, float]) -> str:
    """Return an interval: ``0.951 to 0.989``."""
    if sensible(interval):
        return f"{times(interval[0])} to {times(interval[1])}"
    return TOO_NOISY


def not_yet(blocks: int) -> str:
    """Return ``not yet measured: 1 block of 5``; empty where there are blocks enough for a number."""
    if blocks >= LEAST_BLOCKS:
        return ""
    return f"not yet measured: {count(blocks, 'block')} of {LEAST_BLOCKS}"


def hidden(effect: Effect) -> str:
    """Return why a number must not stand alone: too few blocks, or an interval without a meaning; empty if it may.

    Tables show it all the same, with the number of its blocks. Pictures and sentences do not.
    """
    blocks = effect.blocks
    interval = effect.interval
    if effect.ratio is None and isinstance(effect, Contrast):
        blocks = effect.trials
        interval = effect.value_interval
    if blocks and blocks < LEAST_BLOCKS:
        return not_yet(blocks)
    return "" if interval is None or sensible(interval) else TOO_NOISY


def readable(contrast: Contrast) -> Contrast:
    """Return a contrast as far as a picture may show it: with its value, and without a ratio that is hidden."""
    if hidden(contrast):
        return replace(contrast, ratio=None, interval=None, by_block=())
    return contrast


def drawable(measured: Measured) -> Measured:
    """Return what was measured of an arm without what is hidden."""
    return {name: contrast for name, contrast in measured.items() if not hidden(contrast)}


def visible(contrasts: Iterable[Contrast]) -> bool:
    """Return whether a picture may show any of some contrasts: a ratio, or a value if none of them has a ratio."""
    every = [*contrasts]
    ratios = [contrast for contrast in every if contrast.ratio is not None]
    return not all(map(hidden, ratios or every))


def reachable(blocks: int | None) -> int | None:
    """Return a number of blocks, or None for more than can be measured."""
    return blocks if blocks is not None and blocks <= _REACH else None


def seconds(value: float) -> str:
    """Return a difference with its sign, and decimals where they matter: ``+0.012``, ``-1.23``, ``+45.6``."""
    digits = 1
    if abs(value) < 1:
        digits = 3
    elif abs(value) < 10:
        digits = 2
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # + 0.0: no minus before a zero


def percent(share: float) -> str:
    """Return a share: ``1.8 %``, ``12 %``; close to 100 %, the rest of it deserves more digits."""
    value = share * 100
    digits = 0
    if 99 < value < 100:
        digits = 2
    elif abs(value) < 9.95:
        digits = 1
    text = f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no minus before a zero
    return f"{text.removesuffix('.0')} %"


def margins(comparison: Comparison) -> str:
    """Return the margin of the verdicts; of jobs with several ``2 % or 5 %``, of which the answer names each."""
    return " or ".join(map(percent, comparison.margins))


def floor(share: float) -> str:
    """Return a noise floor, or a difference that blocks detect; above 100 % it would be a number without a meaning."""
    return f"{number(share * 100)} %" if share <= 1 else TOO_NOISY


def duration(value_s: float) -> str:
    """Return a time as people say it: ``45 s``, ``12 min``, ``1 h 10 min``, ``3 days``."""
    if value_s < 90:
        return f"{max(value_s, 1):.0f} s"
    minutes = round(value_s / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{hours / 24:.0f} days"


def verdict(judged: Verdict) -> str:
    """Return ``slower``, ``undecided, +12`` with the blocks that would probably decide, or that there is no verdict."""
    if judged.name is None:
        return "no verdict"
    more = reachable(judged.more_blocks)
    return judged.name if more is None else f"{judged.name}, +{more}"


def ratio(effect: Effect) -> str:
    """Return ``0.972x (0.951 to 0.989), slower`` as far as it is known, or the difference."""
    if effect.difference:
        judged = ""
        if effect.verdict:
            judged = f", {verdict(effect.verdict)}"
        return f"{difference(effect.difference)}{judged}"
    if effect.ratio is None:
        return ""
    interval = ""
    if effect.interval is not None:
        interval = f" ({ends(effect.interval)})"
    if effect.interval is None and effect.verdict:
        interval = f" ({count(effect.blocks, 'block')})"
    # One block has nothing to be decided by: that it says so in every cell helps nobody.
    judged = ""
    if effect.verdict and effect.interval:
        judged = f", {verdict(effect.verdict)}"
    return f"{times(effect.ratio)}x{interval}{judged}"


def at_margin(effect: Effect) -> str:
    """Return ``0.987x (0.944 to 1.030), undecided at 2 %``: beside a claim, whose own bound is another.

    How many more blocks would decide at the margin decides nothing about the claim.
    """
    judged = effect.verdict
    if judged is None or judged.name is None or judged.margin is None or effect.interval is None:
        return ratio(effect)
    return f"{ratio(replace(effect, verdict=None))}, {judged.name} at {percent(judged.margin)}"


def difference(mean_difference: MeanDifference) -> str:
    """Return the mean difference of a count with its interval: ``+0.75 (-0.43 to +1.91)``."""
    interval = ""
    if mean_difference.interval:
        interval = f" ({' to '.join(map(signed, mean_difference.interval))})"
    return f"{signed(mean_difference.mean)}{interval}"


def signed(value: float) -> str:
    """Return a number with its sign; zero has none."""
    if not value:
        return "0"
    return f"{'+' if value > 0 else '-'}{number(abs(value))}"


def excluded(slow: SlowTrials) -> str:
    """Return ``slow trials (over 10 % slower) in more than 7.3 % of runs``: what an ``equivalent`` excludes at 95 %."""
    share = math.ceil(slow.excluded * 1000) / 10  # up: more than this is excluded
    trials = "slow or failed trials" if slow.failures.n else "slow trials"
    return f"{trials} (over {slow.over * 100:.0f} % slower) in more than {share:.3g} % of runs"


def failing(failures: Failures, base: str) -> str:
    """Return ``6 of 20 failed (12 to 54 %), none on bare metal, p = 0.016``: a share with its 95 % interval."""
    share = f"{percent(failures.low).removesuffix(' %')} to {percent(failures.high)}"
    of_target = f"{failures.of_own or 'none'} of {failures.n} failed ({share})"
    return f"{of_target}, {failures.of_base or 'none'} on {base}, p = {failures.p:.2g}"


def parting(effect: Contrast) -> str:
    """Return ``typical 0.999x, expected 0.971x (0.945 to 0.990): 4 of 40 trials …``, or nothing.

    The typical cost does not say all where the expected one departs from it, or where there are slow trials.
    """
    if effect.ratio is None or not effect.expected or not effect.slow or not effect.verdict:
        return ""
    low, high = effect.expected.interval
    departs = not low <= effect.ratio <= high or effect.slow.p <= SIGNIFICANCE
    if not departs and effect.verdict.name not in ("tail", "typical-only"):
        return ""
    slow = _slow_trials(effect.slow)
    expected = f"{times(effect.expected.ratio)}x ({ends(effect.expected.interval)})"
    on_base = f"{effect.slow.base or 'none'} on {base_of(effect.target).replace('-', ' ')}"
    return f"typical {times(effect.ratio)}x, expected {expected}: {slow}, {on_base}"


def _slow_trials(slow: SlowTrials) -> str:
    """Return ``4 of 40 trials were over 10 % slower``, or which machine was slow in every trial."""
    over = f"over {slow.over * 100:.0f} % slower"
    if not slow.machines:
        return f"{slow.own or 'none'} of {slow.n} trials were {over}"
    names = ", ".join(f"{name} ({trials} of {trials})" for name, trials in slow.machines.items())
    there = sum(slow.machines.values())
    elsewhere = f"{slow.own - there or 'none'} of {slow.n - there} elsewhere"
    return f"every trial on {names} was {over}, {elsewhere} (compare them with --by machine)"


def group_lines(group: Group) -> Iterator[str]:
    """Yield lines on a group besides its targets: the noise of bare metal, and whether the layers add up."""
    if not group.job.traits.normalised:
        yield "the victim alone, with idle instances beside it: what it does beside aggressors is compared with this"
    floors: dict[str, list[str]] = {}
    for metric in shown(group.metrics):
        noise = group.noise(metric)
        if noise:
            source = _SOURCES[noise.method].format(
                count(noise.blocks, "block"),
                base=group.base.replace("-", " "),
            )
            floors.setdefault(source, []).append(f"{metric.name} {floor(noise.share)}")
    for source, parts in floors.items():
        yield f"noise floor ({source}): {', '.join(parts)}"
    seen = list(_detectable(group))
    if seen:
        yield f"differences that these blocks could have seen (power {POWER:.0%}): {', '.join(seen)}"
    line = aa_line(group)
    if line:
        yield line
    for of_arm in group.of_kind("layers").values():
        yield f"container-vm against container times vm: {effects(of_arm, group.metrics)}"
    yield from tail_lines(group)
    yield from map(turns_line, group.turns)
    if any(variation.switching and variation.switching.shown for variation in group.turns):
        yield "the first steps of bursts are left out of the ratios: they cost more than the others"


def aa_line(group: Group) -> str:
    """Return what bare metal shows against itself; empty without A/A."""
    name = group.base.replace("-", " ")
    texts = [effects(of_arm, group.metrics) for of_arm in group.of_kind("again").values()]
    return "".join(f"{name} against itself (A/A): {text}" for text in texts)


def turns_line(variation: BurstVariation) -> str:
    """Return ``container in turns: its ratio varies by 1.2 % from burst to burst, …; the first step of a burst …``."""
    levels = {"burst to burst": variation.components.burst, "instance to instance": variation.components.instance}
    # Where each block has one pair of instances, these vary as the blocks do.
    last = "block to block"
    if variation.components.instance is None:
        last = "block to block, each with new instances"
    parts = []
    for name, variance in {**levels, last: variation.components.block}.items():
        if variance is not None:
            parts.append(f"{number(math.sqrt(variance) * 100)} % from {name}")
    varies = ", ".join(parts) or "nothing known"
    text = f"{variation.target} in turns, {count(variation.blocks, 'block')}: its ratio varies by {varies}"
    cost = variation.switching
    if cost and cost.interval:
        text += f"; the first step of a burst takes {times(cost.ratio)}x the time of the others ({ends(cost.interval)})"
    if variation.best:
        text += f"; as a pilot they suggest --rounds {variation.best.rounds} --burst-steps {variation.best.burst_steps}"
    return text


def tail_lines(group: Group) -> Iterator[str]:
    """Yield where typical and expected costs part, and what every ``equivalent`` excludes."""
    bounds: dict[str, list[str]] = {}
    for summary in group.targets:
        for contrast in group.of_target(summary.target).values():
            if contrast.metric.supporting:
                continue
            text = parting(contrast)
            if text:
                yield f"{contrast.target}, {contrast.metric.name}: {text}"
            if contrast.slow and contrast.verdict and contrast.verdict.name == "equivalent":
                bounds.setdefault(excluded(contrast.slow), []).append(f"{contrast.target} {contrast.metric.name}")
    for bound, names in bounds.items():
        yield f"excluded at 95 %: {bound}: {', '.join(names)}"


def shown(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return the metrics that lines and narrow tables have room for."""
    return tuple(metric for metric in metrics if not metric.supporting)


def rows_by_key(comparison: Comparison) -> list[Contrast]:
    """Return the contrasts between values of keys that tables and figures show: times per epoch, scaled ones too."""
    rows = (row for row in comparison.contrasts if row.kind == "by")
    return [row for row in rows if not row.metric.supporting or row.metric.name in EPOCH_METRICS]


def _detectable(group: Group) -> Iterator[str]:
    """Yield ``throughput 3.1 % (vm, 34 blocks)`` for each metric: the target of which the least can be seen."""
    for metric in shown(group.metrics):
        shares = []
        for summary in group.targets:
            row = group.of_target(summary.target).get(metric.name)
            if row and row.verdict and row.verdict.detectable is not None:
                shares.append((row.verdict.detectable, row.target, row.blocks))
        if shares:
            share, target, blocks = max(shares)
            yield f"{metric.name} {floor(share)} ({target}, {count(blocks, 'block')})"


def notes_of(measured: Measured) -> tuple[str, ...]:
    return next((contrast.notes for contrast in measured.values()), ())


def notes_by_target(noted: Iterable[tuple[str, Iterable[str]]]) -> dict[str, tuple[str, ...]]:
    """Return the notes of each target, which comes with some of them at a time; targets of the paper first."""
    notes: dict[str, dict[str, None]] = {}
    for target, texts in noted:
        notes.setdefault(target, {}).update(dict.fromkeys(texts))
    return {target: tuple(notes[target]) for target in sorted(notes, key=lambda name: known_first(TARGETS, name))}


def noted_effects(measured: Measured) -> str:
    """Return ``effects`` after the notes of their arm: `` (accelerator:tcg): throughput 0.961x …``."""
    notes = ", ".join(notes_of(measured))
    return f"{notes and f' ({notes})'}: {effects(measured)}"


def effects(measured: Measured, metrics: Sequence[Metric] = METRICS) -> str:
    """Return ``throughput 0.961x (0.950 to 0.970), slower; elapsed …``."""
    names = (metric.name for metric in shown(metrics) if metric.name in measured)
    return "; ".join(f"{name} {ratio(measured[name])}" for name in names)


def reading_guide(comparison: Comparison) -> str:
    """Return what the ratios, intervals and verdicts of a comparison mean; empty if it has no ratio."""
    estimates = [contrast for contrast in comparison.contrasts if contrast.kind == "target" and contrast.measured]
    if all(estimate.ratio is None for estimate in estimates):
        return ""
    bases = " or ".join(dict.fromkeys(base_of(contrast.target).replace("-", " ") for contrast in estimates))
    text = f"x: times {bases}, geometric mean of the ratios inside blocks"
    if any(estimate.interval for estimate in estimates):
        text += (
            f", trimmed; a to b: its 95 % t interval{', after stopping it covers 89 to 95 %' * comparison.decided}; "
            f"equivalent: within {margins(comparison)} of 1, slower or faster: beyond "
            "(two one-sided tests, Holm); "
            "+n: more blocks that would probably decide"
        )
    names = {estimate.verdict.name for estimate in estimates if estimate.verdict}
    return "; ".join([text, *(meaning for name, meaning in _GUIDES.items() if name in names)])


_GUIDES: Mapping[VerdictName | None, str] = {
    FAILS_MORE: "fails more: more trials fail than on bare metal, beyond chance, and the ratio knows nothing of them",
    "tail": "tail: only the typical trial is equivalent, slow ones are not",
    "typical-only": "typical-only: the typical trial is equivalent, the expected cost is not shown to be",
    None: "no verdict: these trials decide nothing, for the reasons that the answer gives",
}


def warning_lines(comparison: Comparison) -> list[str]:
    """Return each warning as one line of plain text, those of the same finding as one."""
    listed = notices(comparison.warnings, comparison.jobs)
    return [f"warning: {one_line(f'{warning.message}; {warning.advice}')}" for warning in listed]


def one_line(text: str) -> str:
    return " ".join(text.split())
