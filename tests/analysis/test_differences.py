"""The table of differences keeps its word: what it does not ignore is seen by the comparison or by the audit."""

import datetime
import functools
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
from suite.records.differences import FIELDS, TREATMENTS, field_of
from suite.schema import DIFFERENCES, record_schema, with_differences
from tests.analysis.test_audit import NAMES, RUNS, copied

SCHEMA = json.loads(record_schema())
MAPPINGS = {"mitigations", "metrics", "energy_j", "workloads", "sources", "phases", "losses"}
"""Fields whose keys are names of the user's or the machine's."""
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
    "metrics.*.better": "less",
    "data_use.images_read": 1,
    "aggressors.aggression.work": [1.0],
    "metrics.*.samples": [1e12],
    "ranks.role": "victim",
    "resources.gpus.utilisation": 0.5,
    "data_use.page_cache_share": 0.5,
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


def test_the_document_holds_the_table() -> None:
    text = DIFFERENCES.read_text()
    assert with_differences(text) == text, "run python -m suite.schema"


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
    if path in OTHER:
        return OTHER[path]
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


def audit_of(run: Path) -> object:
    records = load([run])
    return audit(records).findings, len(records.trials)


def comparison_of(run: Path) -> object:
    return as_json(compare(load([run])))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Any]]]:
    """Every leaf that some real record knows, with such a record and the leaf's place; small runs first."""
    place = tmp_path_factory.mktemp("runs")
    known: dict[str, tuple[Path, list[Any]]] = {}
    for name in sorted(NAMES, key=lambda name: len(list((RUNS / name / "trials").iterdir()))):
        run = copied(name, place)
        records = {path: json.loads(path.read_text()) for path in sorted((run / "trials").iterdir())}
        # Bare metal is one side of every pair; what is counted is not warmed up.
        order = sorted(records, key=lambda path: (records[path]["target"] == "bare-metal", records[path]["warm_up"]))
        for path in order:
            ok = records[path]["outcome"]["status"] == "ok"
            for leaf, where in found(records[path]):
                if ok != leaf.startswith("outcome.") or leaf == "outcome.status":
                    known.setdefault(leaf, (path, where))
    return known


SHARES = 4
"""The parts of the next test: each field costs a comparison, and several can run at a time."""


@pytest.mark.parametrize("share", range(SHARES))
def test_a_change_of_any_field_that_is_not_ignored_is_seen(
    samples: dict[str, tuple[Path, list[Any]]], share: int
) -> None:
    usual = functools.cache(lambda look, run: look(run))
    unseen = []
    looked_at = [leaf for leaf in sorted(samples) if field_of(leaf).treatment != "ignored"]
    for leaf in looked_at[share::SHARES]:
        path, where = samples[leaf]
        run, text = path.parents[1], path.read_text()
        before = [(look, usual(look, run)) for look in (audit_of, comparison_of)]
        record = json.loads(text)
        part: Any = record
        for key in where[:-1]:
            part = part[key]
        part[where[-1]] = changed(leaf, part[where[-1]])
        path.write_text(json.dumps(record, indent=1))
        try:
            if all(look(run) == found for look, found in before):
                unseen.append(f"{leaf} of {path.name}: now {part[where[-1]]!r}"[:200])
        finally:
            path.write_text(text)
    assert unseen == []


def test_most_fields_are_known_to_some_real_record(samples: dict[str, tuple[Path, list[Any]]]) -> None:
    assert len(set(LEAVES) & set(samples)) > 200
