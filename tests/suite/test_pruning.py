import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.errors import RequestError
from suite.plan import Plan
from suite.records.record import TrialRecord
from suite.results.pruning import PruneRule, candidates, remove
from suite.results.store import Run
from suite.sweep.locks import locked

NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)


@pytest.fixture
def make(tmp_path: Path, plan: Callable[..., Plan], record: Callable[..., TrialRecord]) -> Callable[..., Path]:
    """``make("a", 3)``: a run whose last trial is three days old."""

    def _make(name: str, days: int) -> Path:
        run = Run(tmp_path / name)
        run.begin(plan())
        run.save(record(started_at=(NOW - datetime.timedelta(days=days)).isoformat()))
        return tmp_path / name

    return _make


def going(results: Path, **rule: Any) -> list[str]:
    return [entry.directory.name for entry in candidates(results, PruneRule(**rule), NOW) if not entry.kept]


def test_the_newest_stay_and_the_others_go(make: Any, tmp_path: Path) -> None:
    for name, days in (("a", 1), ("b", 30), ("c", 2), ("d", 10)):
        make(name, days)
    assert going(tmp_path, last=2) == ["d", "b"]
    assert going(tmp_path, days=5) == ["d", "b"]
    assert going(tmp_path, last=3, days=5) == ["b"]
    assert going(tmp_path, last=1, kept=(tmp_path / "b",)) == ["c", "d"]


def test_a_sweep_is_one_entry_and_stays_when_one_of_its_runs_is_named(make: Any, tmp_path: Path) -> None:
    make("sweep/x", 20)
    make("sweep/y", 3)
    make("a", 10)
    make("b", 1)
    assert going(tmp_path, last=1) == ["sweep", "a"]
    assert going(tmp_path, last=1, kept=(tmp_path / "sweep/x",)) == ["a"]


def test_only_runs_of_the_suite_are_entries_and_links_are_not_followed(make: Any, tmp_path: Path) -> None:
    outside = make("elsewhere/run", 50)
    results = tmp_path / "results"
    (results / "notes").mkdir(parents=True)
    (results / "begun").mkdir()
    (results / "begun/plan.json").write_text("{}")
    (results / "file.txt").write_text("")
    (results / "link").symlink_to(outside)
    make("results/old", 40)
    make("results/new", 1)
    assert [entry.directory.name for entry in candidates(results, PruneRule(last=1), NOW)] == ["new", "old"]


def test_what_is_in_use_stays_and_what_comes_into_use_is_not_removed(make: Any, tmp_path: Path) -> None:
    busy, other = make("busy", 30), make("other", 20)
    make("new", 1)
    (listed, _) = [entry for entry in candidates(tmp_path, PruneRule(last=1), NOW) if not entry.kept]
    assert listed.directory == other
    with Run(busy).exclusive(), Run(other).exclusive():
        assert {entry.directory.name: entry.kept for entry in candidates(tmp_path, PruneRule(last=1), NOW)}["busy"]
        with pytest.raises(RequestError, match="it has come into use"):
            remove(listed)
    assert other.is_dir()
    remove(listed)
    assert not other.exists()
    assert busy.is_dir()


def test_a_sweep_with_a_locked_block_stays(make: Any, tmp_path: Path) -> None:
    make("sweep/x", 30)
    make("new", 1)
    with locked(tmp_path / "sweep", "block-003"):
        assert going(tmp_path, last=1) == []
    assert going(tmp_path, last=1) == ["sweep"]


def test_a_run_that_is_kept_is_not_removed(make: Any, tmp_path: Path) -> None:
    make("a", 1)
    (entry,) = candidates(tmp_path, PruneRule(last=1), NOW)
    with pytest.raises(RequestError, match="among the last 1"):
        remove(entry)
    assert (tmp_path / "a/plan.json").exists()


@pytest.mark.parametrize("rule", [{}, {"last": 0}, {"days": -1.0}, {"last": 1, "kept": (Path("/no/such"),)}])
def test_a_rule_that_keeps_nothing_or_names_nothing_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        PruneRule(**rule)
