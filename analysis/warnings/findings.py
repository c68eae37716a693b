"""Findings that a reader must know: typed warnings, made of the trials and of their summaries."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import pandas as pd

from analysis.compare.pairing import ROW, grouped, have_failed, job_of
from analysis.compare.results import ComparedJob, Group
from analysis.load.plans import open_ended, plan_of
from analysis.load.records import Records, run_of
from analysis.statistics.order import place_effect
from analysis.statistics.ratios import exp, judge
from analysis.warnings.types import AnalysisWarning, Touched
from suite.differ import Host, differences
from suite.job.ablations import named_arm
from suite.job.datasets import SYNTHETIC
from suite.results.store import ATTEMPTS, TRIALS
from suite.targets import BASELINE, BASES, base_of
from suite.trial_names import arm_name, instances_in

_HOST_COLUMNS = {"hostname": "hostname"} | {
    f"host_{name}": name for name in ("machine_id", "kernel", "cpu_model", "cpus", "memory_bytes", "mitigations")
}


def _what(row: Mapping[Hashable, object] | pd.Series) -> str:
    return f"{job_of(row)}, {row['model']}"


def _touched(row: Mapping[Hashable, object] | pd.Series) -> Touched:
    return Touched(job_of(row), str(row["target"]), str(row["model"]))


def failures(trials: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield one warning per target and model that has failed trials."""
    at_some_time = have_failed(trials)
    if not at_some_time.any():
        return
    arms = trials.assign(ablation=trials["ablation"].fillna(""), aggressor=trials["aggressor"].fillna(""))
    arm = [*ROW, "ablation", "aggressor"]
    planned = arms.groupby(arm)["ok"].transform("size")
    for _, failed in arms[at_some_time].groupby(arm):
        first = failed.iloc[0]
        target = named_arm(first["target"], first["ablation"])
        if first["aggressor"]:
            target += f", beside {first['aggressor']}"
        of_trials = int(planned[failed.index[0]])
        touches = (_touched(first),)
        yield failed_trials(_what(first), target, failed, of_trials, touches=touches)


def failed_trials(
    what: str,
    where: str,
    failed: pd.DataFrame,
    of_trials: int,
    *,
    touches: tuple[Touched, ...] = (),
) -> AnalysisWarning:
    """Return the warning of failed trials with the first that was not repeated."""
    first = failed.sort_values("ok", kind="stable").iloc[0]
    if first["ok"]:
        why = "and were repeated"
        advice = f"see {Path(run_of(first['path']), ATTEMPTS)}: the failed attempts are in it"
    else:
        why = f"({first['error_kind']}: {first['error_message']})"
        advice = f"see {first['path']}: the command and the end of its output are in it"
    finding = f"{what}: {len(failed)} of {of_trials} trials on {where} failed {why}"
    return AnalysisWarning("failed-trials", finding, advice, touches=touches)


def mixtures(trials: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield one warning per target and model whose finished trials did not all use the same substitutes."""
    used = trials[trials["ok"]].groupby(ROW)["substitutes"].unique()
    mixed = used[used.map(len) > 1]
    for row in mixed.reset_index().to_dict("records"):
        sets = [set(text.splitlines()) for text in row["substitutes"]]
        of_some = set.union(*sets) - set.intersection(*sets)
        differing = ", ".join(sorted(of_some))
        yield AnalysisWarning(
            "mixed-substitutes",
            f"{_what(row)}: only some trials on {row['target']} used {differing}; their mean mixes both",
            "compare the runs one at a time",
            touches=(_touched(row),),
        )


def refusals(refused: pd.DataFrame, against: str = BASELINE, ablation: str = "") -> Iterator[AnalysisWarning]:
    """Yield one warning per target, model and difference of the pairs that ``validity.usable`` refused."""
    keys = [refused[name] for name in (*ROW, "difference")]
    for _, rows in refused.groupby(keys):
        first = rows.iloc[0]
        blocks = "1 block" if len(rows) == 1 else f"{len(rows)} blocks"
        target = named_arm(first["target"], ablation)
        difference = str(first["difference"])
        base = against
        if against == BASELINE:
            base = base_of(str(first["target"]))
        refusal = f"in {blocks} {target} is not comparable with {base}, so no ratio is formed"
        finding = f"{_what(first)}: {refusal}: {difference}"
        yield AnalysisWarning(
            "incomparable",
            finding,
            _advice(difference),
            touches=(_touched(first),),
        )


def _advice(difference: str) -> str:
    for words, advice in _REFUSED:
        if any(word in difference for word in words):
            return advice
    return _ANYTHING_ELSE


_REFUSED = (
    (("userland",), "build the image with bench image build and run all targets as root, so that they share it"),
    (
        ("losses", "weights"),
        "machine, threads and vector instructions agree: see the losses of both (bench results export --steps); a "
        "workload of yours that the seed does not decide says so: reproducible = False",
    ),
    (
        ("drew other", "draws"),
        "one seed draws the same on every machine: see whether a target has another data set or worker",
    ),
    (
        ("ended at", "printed a step"),
        "see the output of both; print the last step at the end of the command, or leave it out of the pattern",
    ),
    (("CPU capability",), "run all targets with the capability that they share, or declare it with --isa native"),
)
"""Advice by what differs."""
_ANYTHING_ELSE = "run all targets from one plan; --force forms the ratio and marks it"


def unnormalised(groups: Sequence[Group]) -> Iterator[AnalysisWarning]:
    """Yield one warning per job and reason, with the targets and models whose values have no ratio to bare metal."""
    bare: dict[tuple[ComparedJob, str], tuple[dict[str, None], dict[str, None]]] = {}
    for group in groups:
        if group.job.traits.normalised:
            for target, reason in _bare(group):
                models, all_targets = bare.setdefault((group.job, reason), ({}, {}))
                models[group.model] = None
                all_targets[target] = None
    for (job, reason), (models, targets) in bare.items():
        values = f"{', '.join(targets)} of {', '.join(models)}"
        base = base_of(next(iter(targets)))
        advice = f"measure it in the blocks of {base}"
        if base == BASELINE:
            advice = _command(job, models, dict.fromkeys((base, *targets)))
        yield AnalysisWarning(
            "not-normalised",
            f"{job}: {values} not normalised to {base}: {reason}",
            advice,
            touches=tuple(Touched(job, target, model) for target, model in product(targets, models)),
        )


def _bare(group: Group) -> Iterator[tuple[str, str]]:
    """Yield each target with a number that has no ratio to bare metal, and why."""
    counts = {metric.name for metric in group.metrics if metric.by_difference}
    of_baseline = group.of_target(group.base)
    for summary in group.targets:
        if summary.target not in BASES:
            for name, contrast in group.of_target(summary.target).items():
                if contrast.ratio is not None or contrast.difference is not None:
                    continue
                both = (contrast, of_baseline.get(name, contrast))
                if name not in counts and any(side.metric.by_difference for side in both):
                    yield summary.target, f"{name} is zero in some trials, which have no ratio"
                else:
                    yield summary.target, _why_bare(group)


def _why_bare(group: Group) -> str:
    baseline = next((summary for summary in group.targets if summary.target == group.base), None)
    if baseline is None:
        return f"there is no {group.base} trial"
    if not baseline.ok:
        return f"every {group.base} trial failed"
    return f"no block holds both and a comparable {group.base} trial"


def _command(job: ComparedJob, models: Iterable[str], targets: Iterable[str]) -> str:
    """Return the ``bench run`` that repeats these trials together with bare metal."""
    options = [f"--scenario {job.scenario}", f"--profile {job.profile}"]
    traits = job.traits
    if not traits.probes:
        options.append(f"--recipe {job.recipe}")
    if traits.reads and job.data != SYNTHETIC:
        data = job.data if job.data == "generated" else f"{job.data}:DIR"
        options.append(f"--data {data}")
    if traits.multiplied:
        models = [",".join(str(instances_in(model)) for model in models)]
    if traits.workloads or traits.probes:
        options += [f"--{traits.subject} {name}" for name in models]
    else:
        # Records have the name of a command, and not its words.
        options.append(f"--{traits.subject} ...")
    options += [f"--target {target}" for target in targets]
    return " ".join(("bench run", *options))


def hosts_differ(trials: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield one warning if the hosts of the trials are not equal. Absent facts differ from known ones."""
    hosts = hosts_of(trials)
    differing = differences(hosts)
    if differing:
        names = ", ".join(dict.fromkeys(host.name for host in hosts))
        yield AnalysisWarning(
            "hosts-differ",
            f"the trials are of hosts that are not equal ({names}): {'; '.join(differing)}",
            "a block is of one host, so its ratios hold there; to compare the hosts with each other, add --by host",
        )


def hosts_of(trials: pd.DataFrame) -> list[Host]:
    once = trials[list(_HOST_COLUMNS)].drop_duplicates()
    rows = once.rename(columns=_HOST_COLUMNS).astype(object)
    hosts = rows.where(rows.notna(), None).to_dict("records")
    for facts in hosts:
        if facts["mitigations"] is not None:
            pairs = (line.partition(": ") for line in str(facts["mitigations"]).splitlines())
            facts["mitigations"] = tuple((name, how) for name, _, how in pairs)
    return [Host.model_validate(facts) for facts in hosts]


def missing_trials(records: Records, trials: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield the arms of each run that lack trials of begun or planned blocks; warm-up trials may be missing."""
    for run in records.directories:
        plan = plan_of(run)
        if plan is None:
            continue
        recorded = records.evidence[records.evidence["path"].str.startswith(f"{run / TRIALS}/")]
        names = set(recorded["trial_id"])
        begun = recorded["block"].max()
        grows = open_ended(run)
        in_sweep = (run.parent / "sweep.json").is_file()
        of_sweep = f"go on with the sweep: bench sweep run FILE --out {run.parent}"
        missing: Counter[tuple[str, str, str]] = Counter()
        total: Counter[tuple[str, str, str]] = Counter()
        for planned in plan.trials():
            if planned.warm_up or (grows and planned.block > begun):
                continue
            key = planned.job.model, planned.target, arm_name(*planned.arm)
            total[key] += 1
            missing[key] += planned.trial_id not in names
        own = trials["path"].str.startswith(f"{run / TRIALS}/")
        of_run = trials.loc[own, [*ROW, "stack"]].drop_duplicates(["model", "target"])
        for (model, target, arm), count in sorted((+missing).items()):
            # What has no trial at all has no number that the warning could stand at.
            rows = of_run[(of_run["model"] == model) & (of_run["stack"] == target)]
            yield AnalysisWarning(
                "missing-trials",
                f"planned trials of {run} are missing",
                of_sweep if in_sweep else f"go on with the run: bench run --continue {run}",
                f"{model} on {arm}, {count} of {total[model, target, arm]}",
                tuple(map(_touched, rows.to_dict("records"))),
            )


def orders(groups: Sequence[Group], pairs: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield the ratios whose blocks depend on each other, and those that the places of trials in blocks have moved."""
    normalised = [group for group in groups if group.job.traits.normalised]
    for group in normalised:
        for contrast in group.contrasts:
            job, model, target, *_ = contrast.arm
            if contrast.kind == "target" and contrast.metric in group.deciding and contrast.dependent is not None:
                yield AnalysisWarning(
                    "dependent-blocks",
                    f"{job}, {model}: the {contrast.metric.name} of {target}: blocks resemble the one before "
                    f"(rank von Neumann test, p = {contrast.dependent:.1g}), so that its interval is too narrow",
                    "look for what lasts longer than a block, such as neighbours or heat; measure blocks further apart",
                    touches=(Touched(job, target, model),),
                )
    yield from _moved({group.key: group for group in normalised}, pairs)


def _moved(by_group: Mapping[tuple[ComparedJob, str], Group], pairs: pd.DataFrame) -> Iterator[AnalysisWarning]:
    """Yield the ratios of targets whose mean place differs from bare metal's, and matters."""
    uneven = []
    for (job, model, target), trials in grouped(pairs):
        places = trials["position"] - trials["position_base"]
        if (job, model) in by_group:
            for metric in by_group[job, model].deciding:
                measured = trials[metric.column].dropna()
                later = places[measured.index].to_numpy()
                if later.sum() and (effect := place_effect(measured.to_numpy(), later)):
                    uneven.append((Touched(job, target, model), metric.name, effect, float(later.mean())))
    # Without a margin a verdict is whether the effect differs from none, corrected for all ratios.
    verdicts = judge([effect for *_, effect, _ in uneven], margin=0.0)
    for (touched, name, effect, mean), verdict in zip(uneven, verdicts, strict=True):
        if effect.interval and verdict and verdict.name != "undecided":
            low, high = map(exp, effect.interval)
            order = "before" if mean < 0 else "after"
            came = f"{touched.target} came {abs(mean):.2g} places {order} {base_of(touched.target)}"
            yield AnalysisWarning(
                "place-in-block",
                f"{touched.job}, {touched.model}: the {name} of {touched.target}: a trial one place later in its "
                f"block has {exp(effect.centre):.3f} times as much (95 % interval {low:.3f} to {high:.3f}), and "
                f"{came}: a factor of {exp(effect.centre * mean):.3f}",
                "measure an even number of blocks, so that every target has the same mean place",
                touches=(touched,),
            )
