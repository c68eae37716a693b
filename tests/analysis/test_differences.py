"""The table of differences keeps its word: no field of a record can be changed in silence.

Every field of the schema is changed, taken away or put in, one at a time, in real records of both designs. The record
is then refused, marked or warned of, or the field is one of those that the table ignores, or that ``HARMLESS``,
``UNKNOWN`` and ``ADDED`` name with a reason.
"""

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from analysis.audit.audit import audit
from analysis.compare.comparison import compare
from analysis.load.records import load
from analysis.report.rows import as_json
from suite.errors import RequestError
from suite.records.differences import FIELDS, TREATMENTS
from suite.results.store import Run
from suite.schema import record_schema
from tests.analysis.test_audit import NAMES, RUNS, copied

HARMLESS = {
    **dict.fromkeys(
        (f"resources.{side}.disk_{way}_bytes" for side in ("serving", "worker") for way in ("read", "written")),
        "a cost that is shown beside; nothing else in a record counts it",
    ),
    "aggressors.aggression.*_per_s": "what the aggressor kept of its speed is shown beside; no verdict is of it",
    "epochs.checkpoints.size_bytes": "shown nowhere",
}
"""Fields whose value may be changed without a word, each with the reason."""
ADDED = {
    "kept": "the weights of the whole training are compared, and each of its fields is ignored",
    "conditions.busiest": "names the processes of the CPU time that other_cpu_s counts, and warns by it alone",
}
"""Fields that may be added as a whole without a word, each with the reason."""
UNKNOWN = {
    "clock_ratio": "a job that is too short for it has none",
    "global_batch": "it repeats what follows from the job",
    "data_use.page_cache_share": "mincore(2) may be refused; the state was checked before the launch",
    "metrics.*.samples": "a value of one repetition has none",
    "timeline.between_epochs_s": "no number holds it, and a job of a number of steps has none",
    "environment.*.seccomp": "what is not known of it is taken as expected of the target",
    "ranks.environment.*": "a rank is held against the one of the same number on bare metal, and says what it can",
    "ranks.*_bytes": "not every network counts them; only a prediction is computed from them",
    "aggressors.environment.*": "an idle instance does not say everything",
    "aggressors.aggression.*_per_s": "what could not be counted is shown as absent",
    "resources.energy_j.*": "shown as absent",
    "generated.png": "images may be too large for one; the digest of all pixels is compared",
}
"""Fields that may be null although others know them, each with the reason."""
SCHEMA = json.loads(record_schema())
MAPPINGS = {"mitigations", "metrics", "energy_j", "workloads", "sources", "phases", "losses"}
"""Fields whose keys are names of the user's or the machine's."""
_AROUND = ("launch", "imports", "build", "warmup", "teardown", "exit")
OTHER = {
    "run_id": "0" * 16,
    "target": "vm",
    "outcome.status": "failed",
    "job.isa": "native",
    "job.recipe": "tuned",
    "job.page_cache": "warm",
    "job.devices.device": "cuda",
    "job.devices.parallel": "ddp",
    "job.cpu_capability": "default",
    "job.loading.decoder": "pillow",
    "job.loading.crop": "centre",
    "job.dataset.kind": "mnist",
    "job.distributed.strategy": "all-reduce",
    "job.distributed.network": "host",
    "job.distributed.lab.rate": "3gbit",
    "job.distributed.lab.delay": "3ms",
    "data_use.kind": "mnist",
    "data_use.images_read": 1,
    "aggressors.aggression.work": [1.0],
    "metrics.*.samples": [1e12],
    "ranks.role": "victim",
    "data_use.page_cache_share": 0.5,
    **dict.fromkeys((f"resources.{side}.cpu_s" for side in ("serving", "worker")), 1e6),
    **dict.fromkeys((f"resources.{side}.peak_memory_bytes" for side in ("serving", "worker")), 1 << 45),
    **dict.fromkeys((f"timeline.{part}_s" for part in _AROUND), 1e6),
}
"""Another value of fields that may not have any."""


def leaves(node: dict[str, Any], path: str = "", *, schema: Mapping[str, Any] = SCHEMA) -> Iterator[str]:
    """Yield every leaf field of a node of the schema, with * for the keys of mappings."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    kinds = [kind for kind in node.get("anyOf", ()) if kind.get("type") != "null"]
    if len(kinds) == 1:
        yield from leaves(kinds[0], path, schema=schema)
    elif "properties" in node:
        for name, inner in node["properties"].items():
            yield from leaves(inner, f"{path}.{name}" if path else name, schema=schema)
    elif node.get("type") == "array" and "items" in node:
        yield from leaves(node["items"], path, schema=schema)
    elif isinstance(node.get("additionalProperties"), dict):
        yield from leaves(node["additionalProperties"], f"{path}.*", schema=schema)
    else:
        yield path


LEAVES = sorted(set(leaves(SCHEMA)))


def test_the_table_has_a_row_for_every_field_and_no_other_row() -> None:
    assert [leaf for leaf in LEAVES if not any(fnmatchcase(leaf, one.path) for one in FIELDS)] == []
    assert [one.path for one in FIELDS if not any(fnmatchcase(leaf, one.path) for leaf in LEAVES)] == []
    assert {one.treatment for one in FIELDS} == set(TREATMENTS)
    assert all(one.label and one.group for one in FIELDS if one.treatment == "named")


def found(value: Any, path: str = "") -> Iterator[tuple[str, list[Any], Any]]:
    """Yield the path of each leaf of a record, its place (the keys and indices that lead to it), and its value."""
    if isinstance(value, dict) and path != "details":
        for key, inner in value.items():
            name = "*" if path.rpartition(".")[2] in MAPPINGS else key
            for leaf, place, at_place in found(inner, f"{path}.{name}" if path else name):
                yield leaf, [key, *place], at_place
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, inner in enumerate(value):
            for leaf, place, at_place in found(inner, path):
                yield leaf, [number, *place], at_place
    else:
        yield path, [], value


def leaves_of(record: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield each leaf of the schema that a record knows, of a list that of its first item, and its place."""
    for leaf, where, value in found(record):
        if value is not None and leaf in LEAVES and not any(key for key in where if isinstance(key, int)):
            yield leaf, where


def changed(path: str, value: Any) -> Any:
    """Return another value of a field, far enough for every bound."""
    if path in OTHER and OTHER[path] != value:
        return OTHER[path]
    if path == "metrics.*.better":
        return "more" if value == "less" else "less"
    if path.endswith(("host.cpus", "environment.cpus", "target.cpus", "numa_nodes")):
        return [*value, 99]  # how many there are counts, not which
    if isinstance(value, list):
        return [changed(path, value[0]), *value[1:]] if value else ["x"]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return -value if path == "aggressors.aggression.begun_s" else value * 3 + 10
    if path == "started_at":
        return (datetime.datetime.fromisoformat(value) + datetime.timedelta(days=3)).isoformat()
    if len(value) == 64:
        return value[::-1] if value != value[::-1] else "0" * 64
    return f"{value}x"


def told(run: Path) -> object:
    """Return all that a reader is told of a run beside its numbers.

    That is what is left out, findings, warnings, marks, and whose work was the same.
    """
    try:
        records = load([run])
    except RequestError as error:
        return error.message
    left_out = [warning.message for warning in records.warnings]
    findings = [one for one in audit(records).findings if one.kind != "no-manifest"]
    if left_out or findings:
        return left_out, findings
    comparison = json.loads(as_json(compare(records)))
    rows = [(row["marks"], row["differences"]) for group in comparison["groups"] for row in group["targets"]]
    same_work = [work for group in comparison["groups"] for work in group["same_work"]]
    return comparison["warnings"], rows, same_work


DESIGNS = {"sequential": [name for name in NAMES if name != "turns"], "alternating": ["turns"]}
"""The sample runs of each design. One of the present schema comes first, which knows more."""
Samples = dict[str, dict[str, tuple[Path, list[Any]]]]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """By design, every leaf that some real record knows, with such a record and the leaf's place; small runs first."""
    place = tmp_path_factory.mktemp("runs")
    found_in: Samples = {}
    for design, names in DESIGNS.items():
        known = found_in.setdefault(design, {})
        for name in sorted(names, key=lambda name: (name != "epochs", len(list((RUNS / name / "trials").iterdir())))):
            run = forged(name, place)
            for name_of in ("manifest.json", "quality.json"):
                (run / name_of).unlink(missing_ok=True)
            records = {path: json.loads(path.read_text()) for path in sorted((run / "trials").iterdir())}
            # Bare metal is one side of every pair; what is counted is not warmed up.
            order = sorted(
                records, key=lambda path: (records[path]["target"] == "bare-metal", records[path]["warm_up"])
            )
            for path in order:
                ok = records[path]["outcome"]["status"] == "ok"
                for leaf, where in leaves_of(records[path]):
                    if ok != leaf.startswith("outcome.") or leaf == "outcome.status":
                        known.setdefault(leaf, (path, where))
    return found_in


def mutations(samples: Samples) -> Iterator[tuple[str, str, Path, list[Any], Any]]:
    """Yield what is done to a field, the field, the record, the place in it, and the value to put there."""
    for known in samples.values():
        for leaf, (path, where) in known.items():
            value = at(json.loads(path.read_text()), where)
            yield "changed", leaf, path, where, changed(leaf, value)
            yield "null", leaf, path, where, None
    path, _ = samples["sequential"]["trial_id"]
    there = {leaf for known in samples.values() for leaf in known}
    inserted: dict[str, tuple[list[Any], Any]] = {}
    for leaf in (leaf for leaf in LEAVES if leaf not in there and leaf != "details"):
        where, value = insertion(leaf, json.loads(path.read_text()))
        inserted.setdefault(json.dumps(where), (where, value))
    for where, value in inserted.values():
        yield "inserted", ".".join(map(str, where)), path, where, value


def at(part: Any, where: list[Any]) -> Any:
    for key in where:
        part = part[key]
    return part


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node of the schema without the reference, and without the null, that it may be."""
    kinds = [kind for kind in node.get("anyOf", ()) if kind.get("type") != "null"]
    if kinds:
        return resolved(kinds[0])
    return resolved(SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]) if "$ref" in node else node


def insertion(leaf: str, record: Any) -> tuple[list[Any], Any]:
    """Return the place of the first part on the way to a leaf that a record lacks, and a value for it."""
    node, part = SCHEMA, record
    where: list[Any] = []
    for name in leaf.split("."):
        node = resolved(node)
        if node.get("type") == "array" and part:
            node, part = resolved(node["items"]), part[0]
            where.append(0)
        key = next(iter(part), "x") if name == "*" else name
        node = node["additionalProperties"] if name == "*" else node["properties"][name]
        where.append(key)
        if not part.get(key):
            break
        part = part[key]
    return where, made(node)


def made(node: dict[str, Any]) -> Any:
    """Return some value of a node of the schema, with all that can be in it."""
    node = resolved(node)
    if "const" in node or "enum" in node:
        return node.get("const", node.get("enum", [None])[-1])
    if "properties" in node:
        return {name: made(inner) for name, inner in node["properties"].items()}
    if isinstance(inner := node.get("additionalProperties"), dict):
        return {"x": made(inner)}
    if node.get("type") == "array":
        return [made(each) for each in node.get("prefixItems", [node["items"]] if "items" in node else [])]
    values = {"string": "a" * 64 if "64" in node.get("pattern", "") else "x", "boolean": True, "integer": 7}
    return values.get(node.get("type", ""), 0.5)


def treatment_of(leaf: str) -> str:
    """Return how the table treats a field: its first row decides, the later ones are for the rest."""
    return next((one.treatment for one in FIELDS if fnmatchcase(leaf, one.path)), "measured")


def harmless(what: str, leaf: str) -> bool:
    if treatment_of(leaf) == "ignored":
        return True
    excused = {"changed": HARMLESS, "null": UNKNOWN, "inserted": ADDED}
    return any(fnmatchcase(leaf, pattern) for pattern in excused.get(what, ()))


SHARES = 8
"""The parts of the next test: each field costs a comparison, and several can run at a time."""
SOME = 1
"""The parts that make test runs: all take ten minutes. A new field needs a row in the table in any case."""


@pytest.mark.parametrize(
    "share", [pytest.param(n, marks=() if n < SOME else pytest.mark.thorough) for n in range(SHARES)]
)
def test_no_field_is_changed_in_silence(samples: Samples, share: int) -> None:
    usual: dict[Path, object] = {}
    unseen = []
    for what, leaf, path, where, value in sorted(mutations(samples), key=str)[share::SHARES]:
        run, text = path.parents[1], path.read_text()
        if harmless(what, leaf):
            continue
        before = usual[run] if run in usual else usual.setdefault(run, told(run))
        record = json.loads(text)
        assert what == "inserted" or at(record, where) != value, leaf
        at(record, where[:-1])[where[-1]] = value
        path.write_text(json.dumps(record, indent=1))
        try:
            if told(run) == before:
                unseen.append(f"{what}: {leaf} of {run.name}/{path.name}: now {value!r}"[:200])
        finally:
            path.write_text(text)
    assert not unseen, "\n".join(unseen)


def test_most_fields_are_known_to_some_real_record(samples: Samples) -> None:
    assert len(set(LEAVES) & {leaf for known in samples.values() for leaf in known}) > 230


REMOVED = object()
DONE: dict[str, Callable[[Any, Any], Any]] = {
    "halved": lambda value, _: scaled(value, 0.5),
    "doubled": lambda value, _: scaled(value, 2),
    "null": lambda _, __: None,
    "removed": lambda _, __: REMOVED,
    "swapped": lambda _, other: other,
}
"""What is done to a number, given it and that of another target at the same place."""
SCENARIOS = ("command", "distributed-overlay", "epochs", "kept", "probe", "real", "serve", "shared", "turns")
"""A sample run of each scenario, and of each thing that only some trainings have."""
WITHOUT_PARTS = {"distributed-overlay", "probe", "real", "shared"}
"""Sample runs without the parts of an opening."""
_GONE, _SCALED = ("null", "removed"), ("halved", "doubled", "swapped")
TOLERATED: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(HARMLESS, (tuple(DONE), "see HARMLESS")),
    **dict.fromkeys(UNKNOWN, (_GONE, "see UNKNOWN")),
    "replica": (("removed",), "absent is 0, which it is"),
    "data_use.damaged": (("removed",), "absent is 0, which it is"),
    "global_batch": (_GONE, "the job decides it, and is compared"),
    **dict.fromkeys(
        (
            *(f"timeline.{part}_s" for part in (*_AROUND, "between_epochs", "generating")),
            *(f"timeline.measured_s of {run}" for run in ("command", "serve")),
        ),
        (tuple(DONE), "part of the elapsed time, wrong by less than the bound of two clocks; no metric is of it"),
    ),
    "elapsed_s": (("swapped",), "both targets took as long, within the bound of two clocks"),
    "elapsed_s of probe": (_SCALED, "no metric of a probe, and within the seconds of reading counters"),
    "conditions.interval_s": (("swapped",), "within the seconds of reading counters"),
    "conditions.*": (_SCALED, "an amount below the one that is worth a warning"),
    "alternation.bursts.waiting_cpu_s": (_SCALED, "an amount below the one that is worth a warning"),
    "alternation.bursts.0.begun_s": (_SCALED, "within the pause before the first turn"),
    "clock_ratio": (("swapped",), "both targets have a right clock"),
    "steps.losses.*": (("swapped",), "both targets computed the same, within the rounding of their CPUs"),
    "steps.phases.*": (("halved", *_GONE, "swapped"), "a workload may name as little of computing as it likes"),
    "steps.data_s": (("swapped",), "both waited for nothing"),
    "ranks.*_s": (_SCALED, "of a further rank, wrong by less than the time between steps; the steps are the first's"),
    "data_use.*_read": (_SCALED, "between what was trained and what the files hold; no metric is of it"),
    "metrics.first-image.value": (_SCALED, "one reading, of which nothing else in the record is a part"),
    "metrics.*-iops.value": (_SCALED, "one reading of fio, of which nothing else in the record is a part"),
    "metrics.sequential-*.value": (_SCALED, "one reading of fio, of which nothing else in the record is a part"),
    "resources.*.cpu_s": (_SCALED, "a cost, between that of the worker and what the CPUs could give"),
    "resources.*.peak_memory_bytes": (_SCALED, "a cost, below the limit of memory"),
    "throughput_per_s of serve": (_SCALED, "one reading of the client at saturation, whose requests are not recorded"),
    **{f"open_s of {run}": (tuple(DONE), "its parts are not recorded") for run in WITHOUT_PARTS},
}
"""What may be done to a number without a word, and why; a pattern of its field, or of its place and run."""


def scaled(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [scaled(each, factor) for each in value if each is not None]
    return type(value)(value * factor)


def numbers(record: Any) -> Iterator[tuple[str, list[Any], Any]]:
    """Yield the field and the place of each number, or column of numbers, that was measured, and itself."""
    for leaf, where, value in found(record):
        first = value[0] if isinstance(value, list) and value else value
        measured = not {"job", "environment", "details", "schema_version", "seed"} & {*where}
        if measured and isinstance(first, int | float) and not isinstance(first, bool):
            yield leaf, where, value


def tolerated(done: str, leaf: str, where: list[Any], run: str) -> bool:
    names = (leaf, ".".join(map(str, where)), f"{leaf} of {run}")
    excuses = (whats for pattern, (whats, _) in TOLERATED.items() if any(fnmatchcase(name, pattern) for name in names))
    return treatment_of(leaf) == "ignored" or any(done in whats for whats in excuses)


def changes_of(record: Any, other: Any, run: str) -> Iterator[tuple[str, list[Any], Any]]:
    """Yield what is done to a number, as ``halved: its field``, its place, and what it is then."""
    for leaf, where, value in numbers(record):
        for done, change in DONE.items():
            new = change(value, found_at(other, where))
            if not (tolerated(done, leaf, where, run) or new == value or (new is None and done == "swapped")):
                yield f"{done}: {leaf} ({'.'.join(map(str, where))})", where, new


def found_at(part: Any, where: list[Any]) -> Any:
    try:
        return at(part, where)
    except LookupError:
        return None


def forged(name: str, place: Path) -> Path:
    """Return a copy of a sample run whose manifest, if any, is written anew, with files in the place of its models."""
    run = copied(name, place)
    if (quality := RUNS / name / "quality.json").exists():
        (run / quality.name).write_bytes(quality.read_bytes())
        (run / "models").mkdir()
        records = (json.loads(path.read_text()) for path in (run / "trials").iterdir())
        for model in chain.from_iterable(record["kept"] for record in records):
            with (run / "models" / f"{model['weights_sha256']}.pt").open("wb") as file:
                file.truncate(model["size_bytes"])
        reseal(run)
    return run


def reseal(run: Path) -> None:
    if (run / "quality.json").exists():
        (run / "manifest.json").unlink(missing_ok=True)
        Run(run).seal()
        Run(run).list_file("quality.json")


NUMBER_SHARES, SOME_NUMBERS = 20, 1


@pytest.mark.parametrize(
    "share", [pytest.param(n, marks=() if n < SOME_NUMBERS else pytest.mark.thorough) for n in range(NUMBER_SHARES)]
)
def test_no_number_of_any_scenario_is_changed_in_silence(tmp_path: Path, share: int) -> None:
    """Nor by who writes the manifest anew. A thing that is not seen has a reason in ``TOLERATED``."""
    unseen = []
    for name in SCENARIOS:
        run = forged(name, tmp_path)
        paths = sorted((run / "trials").iterdir())
        records = {path: json.loads(path.read_text()) for path in paths}
        path = min(paths, key=lambda path: (records[path]["target"] == "bare-metal", records[path]["block"], path))
        other = next(one for one in records.values() if one["target"] == "bare-metal" and not one["warm_up"])
        before, text = told(run), path.read_text()
        for what, where, new in islice(changes_of(records[path], other, name), share, None, NUMBER_SHARES):
            after = json.loads(text)
            part, last = at(after, where[:-1]), where[-1]
            part[last] = new
            if new is REMOVED:
                del part[last]
            path.write_text(json.dumps(after, indent=1))
            reseal(run)
            if told(run) == before:
                unseen.append(f"{what} of {name}")
        path.write_text(text)
    assert not unseen, "\n".join(unseen)


def test_every_excuse_and_every_tolerated_number_has_a_reason_and_is_of_a_field() -> None:
    """A metric that one probe has is no field of its own, unless it is an excuse."""
    for pattern, (done, why) in TOLERATED.items():
        field = pattern.partition(" of ")[0].replace(".0.", ".")
        assert why
        assert set(done) <= DONE.keys()
        of_probe = field.startswith("metrics.") and pattern not in (*HARMLESS, *UNKNOWN)
        assert of_probe or any(fnmatchcase(leaf, field) for leaf in LEAVES), pattern
