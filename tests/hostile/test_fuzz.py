"""Ten thousand records, plans and inventories of strangers, and a thousand workers: a message each, and nothing more.

A hundredth of them by default, or less; all with ``VIRTBENCH_FUZZ_FULL=1``.
"""

import itertools
import json
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from analysis.compare.comparison import compare
from analysis.compare.results import Comparison
from analysis.load.records import Records
from commands.compare import show
from scenarios.training import Synthetic
from suite.errors import RequestError
from suite.interfaces import Instance
from suite.inventory import read_inventory
from suite.loop import Loop
from suite.plan import Trial
from suite.records.environment import Environment
from suite.records.record import TrialRecord
from suite.results.store import PLAN, TRIALS, Run
from suite.sweep.cells import cells_of, request_of
from suite.sweep.directory import plan_hash
from suite.sweep.file import PLANS, load_sweep
from tests.hostile.conftest import RUNS, Bench
from tests.hostile.mutations import FULL, examples, json_texts, toml_texts
from tests.jobs import plan_of
from tests.scenarios.conftest import ScriptedNode, ScriptedProcess
from tests.scenarios.test_job import STORY
from tests.suite.conftest import ENVELOPE, WORKLOAD, FakeAccount, FakeObserver

# Fixtures hold nothing that one example would leave to the next; every example has a directory of its own.
FUZZ: dict[str, Any] = {
    "phases": (Phase.explicit, Phase.generate),  # shrinking takes minutes; what failed is printed as it was drawn
    "derandomize": not FULL,
    "suppress_health_check": list(HealthCheck),
    "deadline": None,
    "database": None,
}
RECORDS = {
    path: json.loads(path.read_text())
    for run in sorted(RUNS.glob(f"*/{PLAN}"))
    for path in sorted((run.parent / TRIALS).glob("*.json"))[::5]
}
"""Some of every sample run: each scenario, and both designs."""
SAMPLES = sorted(path.parent for path in RUNS.glob(f"*/{PLAN}"))
HOSTS = {
    "node": [
        {"name": "n1", "host": "alice@gpu1.example.org", "port": 22, "cpus": "0-3,8", "address": "10.0.0.1"},
        {"name": "n2", "host": "gpu2", "interface": "eth0", "directory": "/srv/bench", "data": "/srv/data"},
    ]
}


@contextmanager
def place() -> Iterator[Path]:
    """A directory with a run's own in it; at the end nothing stands beside that."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory).resolve() / "run"
        yield run
        assert [path.name for path in run.parent.iterdir()] in ([], ["run"])


@given(data=st.data())
@settings(max_examples=examples(10_000), **FUZZ)
def test_a_record_of_a_stranger_is_shown_or_refused(data: st.DataObject, bench: Bench) -> None:
    path, record = data.draw(st.sampled_from(list(RECORDS.items())))
    with place() as run:
        (run / TRIALS).mkdir(parents=True)
        shutil.copy(path.parents[1] / PLAN, run / PLAN)
        own = run / TRIALS / path.name
        own.write_bytes(data.draw(json_texts(record)))
        bench("results", "show", str(own))
        if not (shown := bench("results", "show", "--json", str(own))).exit_code:
            json.loads(shown.stdout, parse_constant=pytest.fail)


@contextmanager
def compared_once() -> Iterator[None]:
    """Form the comparison of one run once, in however many forms it is shown: it takes most of the time."""
    kept: dict[bool, Comparison] = {}

    def once(records: Records, *, margin: float | None, force: bool) -> Comparison:
        if force not in kept:
            kept[force] = compare(records, margin=margin, force=force)
        return kept[force]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show, "compare_records", once)
        yield


@given(data=st.data())
@settings(max_examples=examples(1000, one_in=333), **FUZZ)  # some seconds each
def test_a_run_of_a_stranger_is_analysed_or_refused(data: st.DataObject, bench: Bench) -> None:
    sample = data.draw(st.sampled_from(SAMPLES))
    with place() as run, compared_once():
        shutil.copytree(sample, run)
        files = sorted((run / TRIALS).iterdir())
        kept = files[:: -(-len(files) // 12)]  # the largest sample has 60, and each is read a dozen times
        for path in set(files) - set(kept):
            path.unlink()
        for path in kept:
            if data.draw(st.booleans()):
                path.write_bytes(data.draw(json_texts(json.loads(path.read_text()))))
        for path in (run / PLAN, run / "manifest.json"):
            if path.exists() and not data.draw(st.integers(0, 3)):
                path.write_bytes(data.draw(json_texts(json.loads(path.read_text()))))
        for words in (["results", "list"], ["results", "show"], ["audit"], ["compare", "--explain"]):
            bench(*words, str(run))
        for words in (["--by", "host"], ["--allocation"], ["--job", "50 epochs"], ["--claims"]):
            bench("compare", *words, str(run))
        for form in ("--json", "--markdown", "--csv"):
            done = bench("compare", "--force", form, str(run))
            if form == "--json" and not done.exit_code:
                json.loads(done.stdout, parse_constant=pytest.fail)
            assert "![x]" not in done.stdout or form != "--markdown"
        for form in ("csv", "jsonl"):
            bench("results", "export", "--format", form, str(run))
        bench("results", "merge", str(run), "--into", str(run / "into"))
        if not data.draw(st.integers(0, 4)):  # drawing takes seconds
            bench("compare", "--force", "--costs", str(run))
            bench("report", "--force", str(run))
            page = run / "report.html"
            assert not page.exists() or "<script>alert" not in page.read_text()


@given(data=st.data())
@settings(max_examples=examples(500, one_in=166), **FUZZ)
def test_a_sweep_of_a_stranger_is_shown_or_refused(data: st.DataObject, bench: Bench) -> None:
    with place() as sweep:
        shutil.copytree(RUNS / "sweep", sweep)
        files = sorted(sweep.rglob("*.json"))
        for path in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=5, unique=True)):
            path.write_bytes(data.draw(json_texts(json.loads(path.read_text()))))
        bench("sweep", "status", str(sweep))
        bench("sweep", "status", "--json", str(sweep))
        bench("results", "list", str(sweep))
        bench("compare", "--json", str(sweep))


@given(data=st.data())
@settings(max_examples=examples(10_000), **FUZZ)
def test_a_plan_of_a_stranger_is_read_or_refused(data: st.DataObject) -> None:
    plan = tomllib.loads(data.draw(st.sampled_from(sorted(PLANS.glob("*.toml")))).read_text())
    plan.setdefault("engine", {"kind": "slurm", "partition": "cpu", "further": ["--licenses=a"]})
    with place() as file:
        file.write_bytes(data.draw(toml_texts(plan)))
        with suppress(RequestError):
            sweep = load_sweep(file)
            assert plan_hash(sweep)
            for cell in itertools.islice(cells_of(sweep), 50):
                assert request_of(sweep, cell).command()


@given(text=toml_texts(HOSTS))
@settings(max_examples=examples(10_000, one_in=200), **FUZZ)
def test_an_inventory_of_a_stranger_is_read_or_refused(text: bytes) -> None:
    with place() as file:
        file.write_bytes(text)
        with suppress(RequestError):
            assert read_inventory(file).nodes


def recorded(place: Path, node: Any) -> TrialRecord:
    """Run one trial on the node, and return its record, which is the one that is read again."""

    @contextmanager
    def opened(_: Trial) -> Iterator[list[Instance]]:
        yield [Instance(node)]

    run = Run(place)
    loop = Loop(Synthetic(), opened, run, FakeObserver(), Environment, lambda *_: FakeAccount())
    target = ("bare-metal",)
    (made,) = loop.run(plan_of(targets=target, sizes=WORKLOAD, envelope=ENVELOPE, trial_timeout_s=60, model="alexnet"))
    (stored,) = run.records()
    assert stored == made
    return stored


@given(data=st.data())
@settings(max_examples=examples(1000), **FUZZ)
def test_whatever_a_worker_says_there_is_a_record(data: st.DataObject) -> None:
    lines: list[Any] = [json.loads(line) for line in STORY]
    number = data.draw(st.integers(0, len(lines) - 1))
    story = [json.dumps(line) for line in lines]
    story[number] = data.draw(json_texts(lines[number])).replace(b"\n", b" ").decode(errors="replace")
    if data.draw(st.booleans()):
        story.insert(data.draw(st.integers(0, len(story))), data.draw(st.sampled_from(story)))
    attestation = data.draw(json_texts({"kernel": "6.1", "threads": 2, "cpus": [0, 1], "memory_bytes": 2 << 30}))
    process = ScriptedProcess(story, status=data.draw(st.sampled_from((0, 0, 1, -9, 255))))
    node = ScriptedNode(process=process, attestation=attestation.decode(errors="replace"))
    with place() as directory:
        outcome = recorded(directory, node).outcome
        assert outcome.kind != "mistake", outcome.output_tail
