"""The generated parts of docs/reference/, from the declarations. ``python -m tests.reference`` writes them.

A page marks a generated part with ``<!-- NAME -->`` and ``<!-- end -->``.
"""

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from inspect import cleandoc
from itertools import compress
from pathlib import Path
from typing import Any

from analysis.compare.published import published_claims
from analysis.compare.results import PublishedClaim
from analysis.load.metrics import METRICS
from analysis.warnings.conditions import DISTURBANCES
from analysis.warnings.training import LEARNINGS
from commands.output import OUTPUTS, model_of
from suite.records.differences import FIELDS, INSIDE, TREATMENTS
from suite.request.request import OPTIONS, RunRequest
from suite.sweep.file import ELSEWHERE, Sweep, key_of, load_sweep, plan_file

REPOSITORY = Path(__file__).parents[1]
ROOMS = ("suite", "worker", "scenarios", "provisioning", "analysis", "commands")
PAGES = [*sorted((REPOSITORY / "docs" / "reference").glob("*.md")), REPOSITORY / "docs" / "artefact.md"]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, without columns that are empty in all rows."""
    rows = [*rows]
    filled = [any(column) for column in zip(*rows, strict=True)]
    lines = (
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in compress(cells, filled))} |"
        for cells in (header, *rows)
    )
    yield next(lines)
    yield "|---" * sum(filled) + "|"
    yield from lines


def options() -> Iterator[str]:
    """Yield a table for each group of options: those of all runs, then those of a scenario or an engine."""
    fields = RunRequest.model_fields
    for part in dict.fromkeys(one.part for one in OPTIONS.values()):
        title = str(fields[part].annotation.__doc__) if part in fields else part.replace(":", " ").capitalize()
        yield from ("", f"### {title.rstrip('.')}", "")
        yield from table(
            ["option", "key", "scenarios", "meaning"],
            (
                [
                    f"`{one.flags[0]}`",
                    "" if key_of(one.name) == one.name else f"`{key_of(one.name)}`",
                    "" if one.whose() == "any" or part.startswith("scenario:") else one.whose(),
                    one.help(),
                ]
                for one in OPTIONS.values()
                if one.part == part
            ),
        )


def plan_keys() -> Iterator[str]:
    """Yield the keys of a plan file that are not options of a run."""
    named = ("budget", "output", "engine")
    tables: dict[str, Any] = {f"{name}.": Sweep.model_fields[name].annotation for name in named}
    yield from table(
        ["key", "meaning"],
        (
            [f"`{prefix}{name}`", str(field.description)]
            for prefix, model in {"": Sweep, **tables}.items()
            for name, field in model.model_fields.items()
            if f"{prefix}{name}" not in ELSEWHERE.values()
        ),
    )


def differences() -> Iterator[str]:
    """Yield a table for each treatment; fields with the same reason share a row."""
    inside = {f"environment.target.{one.path}" for one in INSIDE}
    for treatment, meaning in TREATMENTS.items():
        reasons: dict[str, list[str]] = {}
        for one in FIELDS:
            # Ranks and aggressors are treated like the target.
            if one.treatment == treatment and not one.path.startswith(
                ("ranks.environment.", "aggressors.environment.")
            ):
                star = r"\*" if one.path in inside else ""
                reason = next((why for why, paths in reasons.items() if one.why == f"see {paths[0]}"), one.why)
                reasons.setdefault(reason, []).append(f"{one.path}{star}")
        yield from ("", f"### {treatment.capitalize()}", "", meaning, "")
        yield from table(["fields", "reason"], ([", ".join(_shortened(paths)), why] for why, paths in reasons.items()))


def _shortened(paths: Sequence[str]) -> Iterator[str]:
    """Yield the paths as code, neighbours of one object in one pair of braces."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        name, star, _ = path.partition(r"\*")
        owner, _, leaf = name.rpartition(".")
        groups.setdefault((owner, star), []).append(leaf)
    for (owner, star), leaves in groups.items():
        names = leaves[0] if len(leaves) == 1 else f"{{{','.join(leaves)}}}"
        yield f"`{owner}.{names}`{star}" if owner else ", ".join(f"`{leaf}`" for leaf in leaves)


def disturbances() -> Iterator[str]:
    """Yield the disturbances of a host with the bounds of a warning and of a spoiled trial."""
    yield from table(
        ["warning", "finding", "from", "disturbed", "advice"],
        (
            [f"`{one.kind}`", one.finding, _bound(one.words(one.bound, "over")), _bound(one.words_spoilt()), one.advice]
            for one in DISTURBANCES
        ),
    )


def _bound(words: str) -> str:
    return re.sub("^(set so|see lscpu -e|see resources.gpus)", "", words)


def warnings() -> Iterator[str]:
    """Yield every other warning of the analysis with its advice, as far as that is constant."""
    rows = {one.kind: one.advice for one in LEARNINGS}
    for path in sorted((REPOSITORY / "analysis").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "AnalysisWarning" and len(node.args) > 2:
                kind, _, advice, *_ = node.args
                if isinstance(kind, ast.Constant):
                    rows[str(kind.value)] = str(advice.value) if isinstance(advice, ast.Constant) else "see the message"
    yield from table(["warning", "advice"], ([f"`{kind}`", rows[kind]] for kind in sorted(rows)))


def metrics() -> Iterator[str]:
    """Yield the metrics of every training."""
    yield from table(
        ["metric", "column", "unit", "better"],
        ([f"`{one.name}`", f"`{one.column}`", one.unit, one.better] for one in METRICS),
    )


def outputs() -> Iterator[str]:
    """Yield the outputs with ``--json``."""
    yield from table(
        ["`bench …`", "content"],
        (
            [name, cleandoc(str(model_of(name).__doc__)).partition("\n\n")[0].replace("\n", " ").replace("``", "`")]
            for name in OUTPUTS
        ),
    )


def artefact() -> Iterator[str]:
    """Yield each published claim with the commands that decide it, what these need, and the expected result."""
    yield from table(
        ["claim", "commands, or why none", "memory", "needs", "expected"],
        (
            [
                f"{claim.paper}: {claim.sentence}",
                "; ".join(f"`{text}`" for text in claim.advice.split("; ")) if claim.where else claim.advice,
                _memory(claim.advice) if claim.where else "",
                _needs(claim) if claim.where else "",
                _expected(claim),
            ]
            for claim in published_claims()
        ),
    )


def _memory(commands: str) -> str:
    """Return the memory of the envelope, which the plan of a sweep has in its file."""
    named = re.search(r"--memory (\S+)", commands)
    if plan := re.match(r"bench sweep run (\S+)", commands):
        sweep = load_sweep(plan_file(Path(plan[1])))
        return str(sweep.envelope.memory or sweep.options.given().get("memory") or "the profile's")
    return named[1] if named else "the profile's"


def _needs(claim: PublishedClaim) -> str:
    """Return the hardware beyond a Linux machine with a container engine."""
    needs = []
    if {"vm", "container-vm"} & {*claim.where.get("target", ()), *claim.over.get("target", ())}:
        needs.append("KVM")
    if "place" in claim.where:
        needs.append("a cluster or a machine in each place")
    if "machines.name" in claim.where:
        needs.append("four machines")
    if "lab.rate" in claim.where or claim.where.get("scenario") == ("distributed",):
        needs.append("root, for the lab network")
    return ", ".join(needs)


def _expected(claim: PublishedClaim) -> str:
    if not claim.between:
        return f"{claim.metric}: {claim.expected}" if claim.expected else ""
    low, high = claim.between
    if high == math.inf:
        return f"{claim.metric}: {low} or more"
    return f"{claim.metric}: at most {high}" if low == -math.inf else f"{claim.metric}: {low} to {high}"


def licences() -> Iterator[str]:
    """Yield the licences of the pinned packages, as their installed metadata state them."""
    pins = [*(REPOSITORY / "constraints.txt").read_text().splitlines(), "torch==", "torchvision=="]
    names: dict[str, list[str]] = {}
    for pin in pins:
        if not pin.startswith("#"):
            name = pin.partition("==")[0]
            names.setdefault(licence(name), []).append(name)
    yield from table(["licence", "packages"], ([text, ", ".join(names[text])] for text in sorted(names)))


def licence(package: str) -> str:
    """Return the expression of a package, or else its classifiers, or else its short text."""
    stated = metadata.metadata(package)
    classifiers = [text for text in stated.get_all("Classifier", []) if text.startswith("License :: OSI Approved :: ")]
    names = " and ".join(text.rpartition(" :: ")[2] for text in classifiers)
    expression, text = ("".join(stated.get_all(field, [])) for field in ("License-Expression", "License"))
    return expression or names or text.partition("\n")[0]


GENERATED = {
    function.__name__.replace("_", "-"): function
    for function in (options, plan_keys, differences, disturbances, warnings, metrics, outputs, artefact, licences)
}


def generated(text: str) -> str:
    """Return a page with its generated parts made anew."""

    def part(match: re.Match[str]) -> str:
        return "\n".join([match[1], *GENERATED[match[2]](), "<!-- end -->"])

    return re.sub(r"(<!-- ([a-z-]+) -->)\n.*?<!-- end -->", part, text, flags=re.DOTALL)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page.read_text()))
