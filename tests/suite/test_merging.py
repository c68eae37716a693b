import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.errors import RequestError
from suite.host_compatibility import Host, differences
from suite.plan import Plan
from suite.records.environment import Environment, Environments
from suite.records.record import Outcome, TrialRecord
from suite.results.merging import merge
from suite.results.store import Run

MakePlan = Callable[..., Plan]
MakeRecord = Callable[..., TrialRecord]
FAILED = {"outcome": Outcome(status="failed", kind="boot", message="no guest"), "throughput_per_s": None}
FACTS: dict[str, Any] = {"cpu_model": "a CPU", "cpus": [0, 1], "memory_bytes": 64 << 30, "kernel": "6.1"}


def host(name: str, **changes: Any) -> dict[str, Any]:
    return {"environment": Environments(host=Environment.model_validate({"hostname": name} | FACTS | changes))}


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture
def make(tmp_path: Path, plan: MakePlan, record: MakeRecord) -> Callable[..., Path]:
    """``make("a", b000={...}, b001={...})``: a run with those trials, named as its host."""

    def _make(name: str, plan_changes: dict[str, Any] | None = None, **trials: dict[str, Any]) -> Path:
        run = Run(tmp_path / name)
        run.begin(plan(**plan_changes or {}))
        for trial_id, changes in trials.items():
            run.save(record(**({"trial_id": trial_id, **host(name.split("/")[0])} | changes)))
        return tmp_path / name

    return _make


def test_runs_of_two_hosts_become_one_and_the_sources_stay_as_they_were(make: Any, tmp_path: Path) -> None:
    sources = [make("a", b000={}), make("b", {"blocks": 9, "warmup_blocks": 1}, b001={})]
    before = [files(source) for source in sources]
    done = merge(sources, tmp_path / "all")
    assert (sorted(done.added), done.replaced, done.kept) == (["b000", "b001"], [], 0)
    assert list(Run(tmp_path / "all").finished()) == ["b000", "b001"]
    plan = json.loads((tmp_path / "all/plan.json").read_text())
    assert (plan["blocks"], plan["warmup_blocks"]) == (9, 1)
    assert files(tmp_path / "all")["trials/b001.json"] == before[1]["trials/b001.json"]
    assert [files(source) for source in sources] == before


def test_a_merge_that_is_repeated_changes_nothing(make: Any, tmp_path: Path) -> None:
    sources = [make("a", b000={}), make("b", b001=FAILED)]
    merge(sources, tmp_path / "all")
    before = files(tmp_path / "all")
    done = merge(sources, tmp_path / "all")
    assert (done.added, done.replaced, done.kept) == ([], [], 2)
    assert files(tmp_path / "all") == before


def test_a_record_that_is_ok_takes_the_place_of_a_failed_one_in_whatever_order(make: Any, tmp_path: Path) -> None:
    good, bad = make("a", b000={}), make("b", b000=FAILED)
    for number, sources in enumerate(([good, bad], [bad, good])):
        merge(sources, tmp_path / f"all{number}")
        assert list(Run(tmp_path / f"all{number}").finished()) == ["b000"]
    merge([bad], tmp_path / "later")
    assert merge([good], tmp_path / "later").replaced == ["b000"]
    assert merge([bad], tmp_path / "later").kept == 1
    assert list(Run(tmp_path / "later").finished()) == ["b000"]


def test_of_two_failures_the_later_one_stays(make: Any, tmp_path: Path) -> None:
    first = make("a", b000=FAILED | {"started_at": "2026-01-01T00:00:00+00:00"})
    second = make("b", b000=FAILED | {"started_at": "2026-01-02T00:00:00+00:00"})
    merge([second, first], tmp_path / "all")
    assert json.loads((tmp_path / "all/trials/b000.json").read_text())["started_at"].startswith("2026-01-02")


def test_two_records_of_a_trial_that_are_ok_and_differ_are_refused_before_anything_is_written(
    make: Any, tmp_path: Path
) -> None:
    one, other = make("a", b000={}, b001={}), make("b", b000={"elapsed_s": 6.0})
    with pytest.raises(RequestError, match=r"two records of b000 are ok and differ: .*a/trials.* and .*b/trials"):
        merge([one, other], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_runs_of_different_plans_are_refused(make: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"is of another plan than .*: seed differ"):
        merge([make("a", b000={}), make("b", {"seed": 8}, b001={})], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_hosts_that_are_not_equal_are_refused_by_what_differs_and_pooled_when_forced(make: Any, tmp_path: Path) -> None:
    sources = [make("a", b000={}), make("b", b001=host("b", kernel="6.6", memory_bytes=32 << 30))]
    with pytest.raises(RequestError, match=r"memory: a 64 GiB, b 32 GiB; kernel: a 6.1, b 6.6"):
        merge(sources, tmp_path / "all")
    assert not (tmp_path / "all").exists()
    assert len(merge(sources, tmp_path / "all", force=True).host_differences) == 2
    assert len(list(Run(tmp_path / "all").finished())) == 2


def test_a_file_that_is_no_record_or_lies_about_its_name_is_left_out(make: Any, tmp_path: Path) -> None:
    source = make("a", b000={})
    text = (source / "trials/b000.json").read_text()
    (source / "trials/b001.json").write_text(text.replace('"b000"', '"../../outside"'))
    (source / "trials/b002.json").write_text("{")
    done = merge([source], tmp_path / "all")
    assert [Path(path).name for path in done.left_out] == ["b001.json", "b002.json"]
    assert set(files(tmp_path / "all")) == {"plan.json", "manifest.json", "trials/b000.json"}


def test_sweeps_are_merged_cell_by_cell_with_the_attempts(make: Any, tmp_path: Path) -> None:
    for name, cells in (("a", ("x", "y")), ("b", ("y", "z"))):
        for cell in cells:
            made = make(f"{name}/{cell}", **{f"{name}-{cell}": {}})
            (made / "attempts").mkdir()
            (made / "attempts/t.1.json").write_text(f'{{"of": "{name}"}}')
        (tmp_path / name / "sweep.json").write_text("{}")
    for _ in range(2):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
        names = sorted(path.name for path in tmp_path.glob("all/*/trials/*"))
        assert names == ["a-x.json", "a-y.json", "b-y.json", "b-z.json"]
        assert sorted(path.name for path in tmp_path.glob("all/y/attempts/*")) == ["t.1.json", "t.2.json"]
    (tmp_path / "b/sweep.json").write_text('{"other": 1}')
    with pytest.raises(RequestError, match="sweeps of different plans"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")


def test_runs_that_hold_no_record_yet_are_merged_into_one_that_holds_none(make: Any, tmp_path: Path) -> None:
    assert merge([make("a"), make("b")], tmp_path / "all").added == []
    assert set(files(tmp_path / "all")) == {"plan.json", "manifest.json"}


def test_what_cannot_be_merged_is_refused(make: Any, tmp_path: Path) -> None:
    run = make("a", b000={})
    make("sweep/x", b000={})
    (tmp_path / "empty").mkdir()
    for sources, into, why in (
        ([tmp_path / "empty"], "all", "neither a run nor a sweep"),
        ([run, tmp_path / "sweep"], "all", "is a run and others are sweeps"),
        ([run], "a", "is among the sources"),
        ([run], "sweep", "is a sweep and the sources are runs"),
    ):
        with pytest.raises(RequestError, match=why):
            merge(sources, tmp_path / into)


def test_equal_hosts_have_no_differences_and_a_little_memory_is_none() -> None:
    hosts = [Host.of({"hostname": name, **FACTS, "memory_bytes": size}) for name, size in (("a", 1000), ("b", 990))]
    assert differences(hosts) == ()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"cpu_model": "other"}, "CPU model: a a CPU, b other"),
        ({"cpus": [0]}, "CPUs: a 2, b 1"),
        ({"memory_bytes": None}, "memory: a 64 GiB, b unknown"),
        ({"mitigations": {"mds": "on"}}, "mitigations of mds: not the same on a and b"),
    ],
)
def test_each_difference_of_hosts_is_named(change: dict[str, Any], found: str) -> None:
    assert differences([Host.of({"hostname": "a", **FACTS}), Host.of({"hostname": "b", **FACTS} | change)]) == (found,)
