"""The table of differences keeps its word: no field of a record can be changed in silence.

Every field of the schema is changed, taken away or put in, one at a time, in real records of both designs. The record
is then refused, marked or warned of, or the field is one of those that the table ignores, or that ``HARMLESS``,
``UNKNOWN`` and ``ADDED`` name with a reason.
"""

import datetime
import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from analysis.audit.audit import audit
from analysis.compare.comparison import compare
from analysis.load.records import load
from analysis.report.rows import as_json
from suite.errors import RequestError
from suite.records.differences import FIELDS, TREATMENTS
from suite.schema import record_schema
from tests.analysis.test_audit import NAMES, RUNS, copied

HARMLESS = {
    **dict.fromkeys(
        (f"resources.{side}.disk_{way}_bytes" for side in ("serving", "worker") for way in ("read", "written")),
        "a cost that is shown beside; nothing else in a record counts it",
    ),
    "aggressors.aggression.*_per_s": "what the aggressor kept of its speed is shown beside; no verdict is of it",
}
"""Fields whose value may be changed without a word, each with the reason."""
ADDED = {"kept": "the weights of the whole training are compared, and each of its fields is ignored"}
"""Fields that may be added as a whole without a word, each with the reason."""
UNKNOWN = {
    "clock_ratio": "a job that is too short for it has none",
    "data_use.page_cache_share": "mincore(2) may be refused; the state was checked before the launch",
    "metrics.*.samples": "a value of one repetition has none",
    "timeline.between_epochs_s": "no number holds it, and a job of a number of steps has none",
    "environment.*.seccomp": "what is not known of it is taken as expected of the target",
    "ranks.environment.*": "a rank is held against the one of the same number on bare metal, and says what it can",
    "ranks.*_bytes": "not every network counts them; only a prediction is computed from them",
    "aggressors.environment.*": "an idle instance does not say everything",
    "aggressors.aggression.*_per_s": "what could not be counted is shown as absent",
    "resources.energy_j.*": "shown as absent",
}
"""Fields that may be null although others know them, each with the reason."""
SCHEMA = json.loads(record_schema())
MAPPINGS = {"mitigations", "metrics", "energy_j", "workloads", "sources", "phases", "losses"}
"""Fields whose keys are names of the user's or the machine's."""
_AROUND = ("launch", "imports", "build", "warmup", "teardown", "exit")
OTHER = {
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
    "job.sharing.bare_metal_cpus": "unrestricted",
    "data_use.kind": "mnist",
    "data_use.images_read": 1,
    "aggressors.aggression.work": [1.0],
    "metrics.*.samples": [1e12],
    "ranks.role": "victim",
    "resources.gpus.utilisation": 0.5,
    "data_use.page_cache_share": 0.5,
    **dict.fromkeys((f"resources.{side}.cpu_s" for side in ("serving", "worker")), 1e6),
    **dict.fromkeys((f"resources.{side}.peak_memory_bytes" for side in ("serving", "worker")), 1 << 45),
    **dict.fromkeys((f"timeline.{part}_s" for part in _AROUND), 1e6),
}
"""Another value of fields that may not have any."""


def leaves(node: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield every leaf field of the schema, with * for the keys of mappings."""
    if "$ref" in node:
        node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]
    kinds = [kind for kind in node.get("anyOf", ()) if kind.get("type") != "null"]
    if len(kinds) == 1:
        yield from leaves(kinds[0], path)
    elif "properties" in node:
        for name, inner in node["properties"].items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif node.get("type") == "array" and "items" in node:
        yield from leaves(node["items"], path)
    elif isinstance(node.get("additionalProperties"), dict):
        yield from leaves(node["additionalProperties"], f"{path}.*")
    else:
        yield path


LEAVES = sorted(set(leaves(SCHEMA)))


def test_the_table_has_a_row_for_every_field_and_no_other_row() -> None:
    assert [leaf for leaf in LEAVES if not any(fnmatchcase(leaf, one.path) for one in FIELDS)] == []
    assert [one.path for one in FIELDS if not any(fnmatchcase(leaf, one.path) for leaf in LEAVES)] == []
    assert {one.treatment for one in FIELDS} == set(TREATMENTS)
    assert all(one.label and one.group for one in FIELDS if one.treatment == "named")


def found(value: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the path of each leaf of a record, and its place: the keys and indices that lead to it."""
    if isinstance(value, dict) and path != "details":
        for key, inner in value.items():
            name = "*" if path.rpartition(".")[2] in MAPPINGS else key
            for leaf, place in found(inner, f"{path}.{name}" if path else name):
                yield leaf, [key, *place]
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for leaf, place in found(value[0], path):
            yield leaf, [0, *place]
    elif value is not None and path in LEAVES:
        yield path, []


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
    """Return all that a reader is told of a run beside its numbers: what is left out, findings, warnings and marks."""
    try:
        records = load([run])
    except RequestError as error:
        return error.message
    left_out = [warning.message for warning in records.warnings]
    findings = [one for one in audit(records).findings if one.kind != "no-manifest"]
    if left_out or findings:
        return left_out, findings
    comparison = json.loads(as_json(compare(records)))
    rows = [(row["marks"], row.get("differences")) for row in comparison["rows"]]
    return comparison["warnings"], rows


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
            run = copied(name, place)
            records = {path: json.loads(path.read_text()) for path in sorted((run / "trials").iterdir())}
            # Bare metal is one side of every pair; what is counted is not warmed up.
            order = sorted(
                records, key=lambda path: (records[path]["target"] == "bare-metal", records[path]["warm_up"])
            )
            for path in order:
                ok = records[path]["outcome"]["status"] == "ok"
                for leaf, where in found(records[path]):
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
        return node.get("const", node.get("enum", [None])[0])
    if "properties" in node:
        return {name: made(inner) for name, inner in node["properties"].items()}
    if isinstance(inner := node.get("additionalProperties"), dict):
        return {"x": made(inner)}
    if node.get("type") == "array":
        return [made(each) for each in node.get("prefixItems", [node["items"]] if "items" in node else [])]
    values = {"string": "a" * 64 if "64" in node.get("pattern", "") else "x", "boolean": True, "integer": 7}
    return values.get(node.get("type", ""), 0.5)


def harmless(what: str, leaf: str) -> bool:
    if any(fnmatchcase(leaf, one.path) and one.treatment == "ignored" for one in FIELDS):
        return True
    excused = {"changed": HARMLESS, "null": UNKNOWN, "inserted": ADDED}
    return any(fnmatchcase(leaf, pattern) for pattern in excused.get(what, ()))


SHARES = 8
"""The parts of the next test: each field costs a comparison, and several can run at a time."""
SOME = 2
"""The parts that make test runs: all take minutes. A new field needs a row in the table in any case."""


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
    assert unseen == []


def test_most_fields_are_known_to_some_real_record(samples: Samples) -> None:
    assert len(set(LEAVES) & {leaf for known in samples.values() for leaf in known}) > 230


def test_every_excuse_is_of_a_field() -> None:
    for pattern in (*HARMLESS, *UNKNOWN):
        assert any(fnmatchcase(leaf, pattern) for leaf in LEAVES), pattern
