"""Foreign records among good ones: every reading command names them, leaves them out, and stays small and quick.

The last test takes 20 mutated records of all sample runs by default, 20,000 with ``VIRTBENCH_FUZZ_FULL=1``, and 1,500
with ``VIRTBENCH_FUZZ_FULL=1500``.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from suite.results.files import MOST_BYTES
from suite.results.store import PLAN, TRIALS, stored_plan
from suite.sweep.estimate import durations_below
from tests.analysis.conftest import edited
from tests.hostile.conftest import RUNS, Bench
from tests.hostile.mutations import FULL, examples, json_texts
from tests.hostile.test_fuzz import FUZZ, SAMPLES
from tests.jobs import identity

REPOSITORY = Path(__file__).parents[2]
PRICES = str(REPOSITORY / "docs/guide/prices.toml")
PRICED = ("cellar", "cloud")
"""The hosts of ``PRICES``: the copies of each sample run are on both."""
COMMANDS = (
    ("audit", "--json"),
    ("compare", "--json", "--force"),
    ("compare", "--explain", "--force"),
    ("compare", "--costs", "--force"),
    ("report", "--force"),
    ("history", "--json"),
    ("results", "list"),
    ("results", "show", "--json"),
    ("results", "export"),
    ("results", "export", "--steps"),
    ("results", "export", "--format", "parquet", "--out", "trials.parquet"),
    ("compare", "--job", "1e6 images", "--prices", PRICES, "--force"),
)
FURTHER = (
    ("compare", "--by", "host", "--force"),
    ("compare", "--by", "model", "--force", "--json"),
    ("compare", "--allocation", "--force"),
    ("compare", "--scaling", "--force"),
    ("compare", "--claims", "--force"),
    ("compare", "--job", "50 epochs", "--force"),
    ("compare", "--job", "50 epochs", "--preempt", "mean=1h", "--prices", PRICES, "--force"),
    ("compare", "--job", "1e6 images", "--by", "host", "--prices", PRICES, "--force", "--json"),
)
"""Forms of the comparison that only the full number of records is given to: each takes seconds."""
DRAWING = ("report", "--explain", "--costs", "--job")
QUICK = [words for words in COMMANDS if not {*words} & {*DRAWING}]
"""The commands that draw nothing."""
ONE_DIRECTORY = ("history", "results show")
"""The commands that take one directory."""
MOST_MIB = 1024
LONGEST_S = 3600.0
Json = dict[str, Any]
Edit = Callable[[Json], object]


def turn(record: Json) -> Json:
    found: Json = record["alternation"]["bursts"][1]
    return found


FOREIGN: dict[str, Edit] = {
    "bursts of more steps than there are": lambda one: turn(one).update(steps=99),
    "bursts of fewer steps": lambda one: one["alternation"]["bursts"].pop(),
    "a step that took no time": lambda one: one["steps"]["elapsed_s"].__setitem__(0, 0.0),
    "more rounds than memory": lambda one: one["job"]["turns"].update(rounds=30_000_000),
    "more rounds than any memory": lambda one: one["job"]["turns"].update(rounds=10**14),
    "more pixels than a machine word": lambda one: one["job"]["sizes"].update(image_px=2**63 - 1),
    "more memory than a machine word": lambda one: one["job"]["envelope"].update(memory_bytes=2**63 - 1),
    "a burst that took for ever": lambda one: turn(one).update(span_s=1e300),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS / "turns", tmp_path / "runs/run"))


def foreign(run: Path) -> Path:
    """Return a record of the run, on bare metal."""
    return min((run / TRIALS).glob("*bare-metal*"))


@pytest.mark.parametrize(
    "edit",
    [
        lambda one: one.update(started_at="default"),
        lambda one: one["job"].pop("scenario"),
        lambda one: one["job"].pop("model"),
        lambda one: one["job"].update(layers="none", target="vm"),
    ],
)
def test_a_foreign_record_beside_a_run_does_not_end_its_forecast(edit: Edit, tmp_path: Path) -> None:
    run = shutil.copytree(RUNS / "synthetic-all", tmp_path / "run")
    for path in (run / "trials").iterdir():
        edited(path, edit)
    assert durations_below(tmp_path).guess(*stored_plan(RUNS / "synthetic-all").trials_of(0)).source == "rough"


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_a_foreign_record_is_left_out_by_name_and_the_others_are_read(
    run: Path, bench: Bench, words: tuple[str, ...]
) -> None:
    """Each stands in a run of its own, named by its number, beside a run that has none."""
    runs = [run]
    for number, edit in enumerate(FOREIGN.values()):
        own = Path(shutil.copytree(run, run.with_name(f"foreign-{number}")))
        for path in (own / TRIALS).iterdir():
            path.write_text(json.dumps({**json.loads(path.read_text()), "run_id": identity(own.name)}, indent=1))
        edited(foreign(own), edit)
        runs.append(own)
    for places in read_by(words, runs):
        done = bench(*words, *places)
        assert done.exit_code in (0, 1), done.output
        told = "".join(done.output.split())
        named = [f"{own.name}/{TRIALS}/{foreign(own).name}isleftout:" in told for own in runs]
        if words[0] in ("audit", "compare") or "export" in words:
            assert dict(zip(("none", *FOREIGN), named, strict=True)) == {"none": False, **dict.fromkeys(FOREIGN, True)}


def read_by(words: tuple[str, ...], runs: list[Path]) -> list[list[str]]:
    """Return what is named to a command so that it reads all runs: at once, or one after the other."""
    if words[0] == "history":
        return [[str(runs[0].parent)]]
    return [[str(own)] for own in runs] if " ".join(words).startswith(ONE_DIRECTORY) else [[*map(str, runs)]]


def test_a_record_whose_design_has_no_name_is_one_in_turns(run: Path, bench: Bench) -> None:
    edited(foreign(run), lambda one: one["job"]["turns"].pop("design"))
    assert "bare-metal-alternating: 2 ok" in bench("results", "show", str(run)).output


def test_a_file_that_is_larger_than_any_record_is_not_read(run: Path, bench: Bench) -> None:
    os.truncate(foreign(run), MOST_BYTES + 1)
    for words in QUICK:
        assert bench(*words, str(run)).exit_code in (0, 1)
    assert "it is larger than 32 MiB" in bench("audit", str(run)).output.replace("\n", " ")


def drawn(record: Json, count: int) -> list[bytes]:
    """Mutate a record so many times."""
    texts = []

    @given(text=json_texts(record))
    @settings(**FUZZ | {"max_examples": count})
    def draw(text: bytes) -> None:
        texts.append(text)

    draw()
    return texts


def foreign_runs(place: Path, count: int) -> list[Path]:
    """Write so many mutated records in copies of the sample runs; a third of the records there are as they were."""
    kept = {sample: sorted((sample / TRIALS).iterdir()) for sample in SAMPLES}
    kept = {sample: files[:: -(-len(files) // 12)] for sample, files in kept.items()}
    mutable = {path: json.loads(path.read_text()) for files in kept.values() for path in files[::3] + files[1::3]}
    # As many of each, so that there are as few runs, and as few records that were not mutated, as can be.
    of_each = max(3, -(-count // len(mutable)))
    for path, record in list(mutable.items())[:: -(-len(mutable) * of_each // count)]:
        for number, text in enumerate(drawn(record, of_each)):
            run = place / f"{path.parents[1].name}-{number:05d}"
            (run / TRIALS).mkdir(parents=True, exist_ok=True)
            (run / TRIALS / path.name).write_bytes(text)
            shutil.copy(path.parents[1] / PLAN, run / PLAN)
    runs = sorted(place.iterdir())
    for number, run in enumerate(runs):
        originals = kept[RUNS / run.name.rpartition("-")[0]]
        run_id = json.loads(originals[0].read_text())["run_id"]
        for path in originals:
            own = run / TRIALS / path.name
            text = own.read_bytes() if own.exists() else path.read_bytes()
            # Of copies only one would be read.
            text = text.replace(f'"run_id": "{run_id}"'.encode(), f'"run_id": "{identity(run.name)}"'.encode())
            own.write_bytes(text.replace(b'"hostname": "vm"', f'"hostname": "{PRICED[number % 2]}"'.encode()))
    return runs


# getrusage(2) of it would tell the peak of the tests' own process, if that was higher when it started this one.
PROGRAM = """
import atexit, re, resource, sys
from pathlib import Path

def tell(place=Path(sys.argv.pop(1))):
    own_kib = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
    place.write_text(str(max(int(own_kib), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)))

atexit.register(tell)
import cli
cli.main()
"""


def measured(words: list[str], place: Path) -> tuple[int, str, int]:
    """Run ``bench`` in a process of its own; return its exit status, its output, and its peak of memory in MiB."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "VIRTBENCH_HOME": str(place / "home")}
    argv = [sys.executable, "-c", PROGRAM, str(place / "peak"), *words]
    done = subprocess.run(
        argv, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=LONGEST_S
    )
    return done.returncode, done.stderr.decode(errors="replace"), int((place / "peak").read_text()) >> 10


@pytest.mark.timeout(4 * LONGEST_S)
def test_reading_thousands_of_mutated_records_takes_less_than_a_gibibyte(tmp_path: Path) -> None:
    runs = foreign_runs(tmp_path / "runs", examples(20_000, one_in=1000))
    for words in (*COMMANDS, *FURTHER) if FULL else COMMANDS:
        # Drawing takes most of the time: of each sample one run will do, unless all are to be tried.
        places, *_ = read_by(words, runs if FULL or words in QUICK else runs[::3])
        status, output, peak_mib = measured([*words, *places], tmp_path)
        print(f"{' '.join(words)}: exit {status}, {peak_mib} MiB, {len(runs)} runs")
        assert status in (0, 1, 2), output[-4000:]
        assert "Traceback" not in output, output[-4000:]
        assert peak_mib < MOST_MIB, words
        if PRICES in words:
            assert "place." not in output, f"the prices were refused: {output[-4000:]}"
