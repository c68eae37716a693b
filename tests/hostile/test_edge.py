"""What the operating system says, and what names can hold, at the edge of the program: a message each."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
from rich.table import Table

from analysis.report.export import text
from provisioning.paths import home
from suite.progress import Display
from suite.results.store import PLAN, TRIALS
from suite.untrusted.console import PlainConsole
from suite.untrusted.terminal import CleanStream, clean, clean_streams
from tests.hostile.conftest import RUNS, Bench
from tests.hostile.mutations import MARKUP, STEERING
from worker.environment import collect

SAMPLE = RUNS / "synthetic-docker"
REPOSITORY = Path(__file__).parents[2]


def changed(run: Path, **changes: Any) -> None:
    """Copy a sample run, with the same changes in each of its records."""
    shutil.copytree(SAMPLE, run)
    for path in (run / TRIALS).iterdir():
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=1))


def refused(*words: str | bytes, **env: str) -> bytes:
    """Return what bench, as a process of its own, says when it refuses these words."""
    argv = [sys.executable, "-m", "cli", *words]
    env = {key: value for key, value in os.environ.items() if key != "VIRTBENCH_DEBUG"} | env
    done = subprocess.run(argv, cwd=REPOSITORY, env=env, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    return done.stderr


def test_a_home_that_cannot_be_written_and_a_path_that_is_too_long_or_not_utf8_are_messages(
    tmp_path: Path, bench: Bench
) -> None:
    assert refused("image", "list", VIRTBENCH_HOME="/proc/virtbench").startswith(b"bench: /proc/virtbench")
    assert b"is not UTF-8" in refused("compare", os.fsencode(tmp_path) + b"/\xff")
    short, long = bench("compare", "x" * 300), bench("results", "show", "/tmp/" + "x" * 5000)
    assert (short.exit_code, long.exit_code) == (2, 2)
    said = " ".join(long.output.split())
    assert [words in said for words in ("File name too long", "use shorter names")] == [True, True]


def test_a_link_to_the_home_is_followed_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "link"))
    assert home() == tmp_path / "real", "runc refuses a path with a link"


def test_directories_whose_names_are_not_utf8_or_steer_a_terminal_are_listed(tmp_path: Path, bench: Bench) -> None:
    for name in (b"\xff", b"\x1b[2J", b"[/x]"):
        shutil.copytree(SAMPLE, os.fsdecode(os.fsencode(tmp_path / "results") + b"/" + name))
    done = bench("results", "list", "results")  # a long path would be folded
    assert (done.exit_code, [name in "".join(done.stdout.split()) for name in ("[/x]", "\\udcff")]) == (0, [True, True])
    assert len(json.loads(bench("results", "list", "--json", "results").stdout)["runs"]) == 3


def test_markup_and_formulas_in_a_record_are_text_and_a_metric_is_no_way_to_another_directory(
    tmp_path: Path, bench: Bench
) -> None:
    metrics = {"../../../elsewhere/x": {"value": 1.5, "unit": "s", "better": "less"}}
    changed(tmp_path / "run", substitutes=[MARKUP, STEERING, "$\\frac$", "=1+1"], metrics=metrics)
    run = str(tmp_path / "run")
    own = {"run", "home"}  # the suite's home holds the secret that seals what is kept
    before = {path for path in tmp_path.rglob("*") if not own & {*path.parts}}
    for words in (["compare", "--force"], ["compare", "--force", "--markdown"], ["report", "--force"], ["audit"]):
        assert bench(*words, run).exit_code in (0, 1)
    assert list((tmp_path / "run/plots").glob("*.png"))
    page = (tmp_path / "run/report.html").read_text()
    assert ("<script>alert" in page, "\x1b" in page) == (False, False)
    assert {path for path in tmp_path.rglob("*") if not own & {*path.parts}} - before == set()


def test_a_record_is_no_way_to_another_directory_when_runs_are_merged(tmp_path: Path, bench: Bench) -> None:
    changed(tmp_path / "run", trial_id="../../../elsewhere")
    bench("results", "merge", str(tmp_path / "run"), "--into", str(tmp_path / "into/deep"))
    assert not list(tmp_path.rglob("elsewhere*"))


def test_the_steps_of_a_sweep_that_are_no_numbers_teach_nothing_and_its_cells_lie_in_it(
    tmp_path: Path, bench: Bench
) -> None:
    shutil.copytree(RUNS / "sweep", tmp_path / "sweep")
    for path, steps in zip(sorted((tmp_path / "sweep").glob("*/trials/*.json")), (STEERING, [], 10**400), strict=False):
        record = json.loads(path.read_text())
        record["job"]["sizes"] |= {"steps": steps, "warmup_steps": steps}
        path.write_text(json.dumps(record, indent=1))
    assert bench("sweep", "status", str(tmp_path / "sweep")).exit_code == 0
    path = tmp_path / "sweep/sweep.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "cells": {"../../elsewhere": {}, **stored["cells"]}}))
    done = bench("sweep", "status", str(tmp_path / "sweep"))
    assert (done.exit_code, "is not the plan of a sweep" in done.output) == (2, True)


def test_infinity_is_no_number_of_a_record_and_a_plan_without_end_keeps_no_reader_busy(
    tmp_path: Path, bench: Bench
) -> None:
    shutil.copytree(SAMPLE, tmp_path / "run")
    path = min((tmp_path / "run" / TRIALS).iterdir())
    path.write_text(path.read_text().replace('"elapsed_s": ', '"elapsed_s": 1e999, "x": ', 1))
    json.loads(bench("compare", "--json", str(tmp_path / "run")).stdout, parse_constant=pytest.fail)
    path = tmp_path / "run" / PLAN
    path.write_text(json.dumps({**json.loads(path.read_text()), "blocks": 2_000_000_000}))
    for words in (["audit"], ["compare", "--json"], ["results", "show"], ["results", "list"]):
        bench(*words, str(tmp_path / "run"))


def test_a_spreadsheet_computes_nothing_of_an_exported_table() -> None:
    odd = ["=1+1", "+1", "-1", "@x", "\tx", "x=1", None]
    table = pd.DataFrame({"name": odd, "kind": pd.Categorical(odd), "value": [-1.5, 2, 3, 4, 5, 6, float("nan")]})
    rows = list(csv.reader(io.StringIO(text(table, "csv"))))[1:]
    assert [row[:2] for row in rows] == [[text] * 2 for text in ("'=1+1", "'+1", "'-1", "'@x", "'\tx", "x=1", "")]
    assert [row[2] for row in rows][:2] == ["-1.5", "2.0"]
    assert json.loads(text(table, "jsonl").splitlines()[0])["name"] == "=1+1"


def test_text_on_the_console_is_text() -> None:
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=True, color_system="standard", width=200)
    table = Table("[red]head[/]", title="[/title]")
    table.add_row(f"[/x]{STEERING}", style="red")
    console.print(table)
    console.print(f"[/y] :smile: {STEERING}")
    shown = out.getvalue()
    assert [text for text in ("[/x]", "[/title]", ":smile:", "\\u001b[2J") if text not in shown] == []
    assert "\x1b[2J" not in shown
    assert "\x1b[31m" in shown, "a style of its own"


def test_a_live_display_steers_the_terminal_and_what_it_shows_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with clean_streams():
        display = Display(PlainConsole(stderr=True, force_terminal=True, width=100))
        display.phase("warm-up", STEERING)
        display.note(f"[/x]{STEERING}")
        click.echo(STEERING, err=True)
        display.close()
    assert "\x1b[2K" in out.getvalue(), "the line is redrawn"
    assert [text in out.getvalue() for text in ("\x1b[2J", "\\u001b[2J", "[/x]")] == [False, True, True]


def test_what_is_printed_is_cleaned_and_what_json_holds_is_not_changed() -> None:
    out = io.StringIO()
    print(f"ü\n\t{STEERING}\udcff", file=CleanStream(out))
    assert out.getvalue().startswith("ü\n\t\\u001b[2J")
    assert "\\udcff" in out.getvalue()
    value = {"text": "\x9b31m \u202e ü"}
    assert json.loads(clean(json.dumps(value, ensure_ascii=False))) == value


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1"])
def test_a_table_with_a_character_that_the_session_lacks_is_printed(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    with clean_streams():
        PlainConsole(width=100).print("unknown command \N{LEFT SINGLE QUOTATION MARK}x")
        click.echo("\N{RIGHT SINGLE QUOTATION MARK}")
    out.flush()
    assert out.buffer.getvalue().decode("ascii").splitlines() == ["unknown command \\u2018x", "\\u2019"]


def test_an_interrupt_that_a_callback_of_the_interpreter_swallows_comes_again() -> None:
    program = """
import os, signal, time, cli
class Callback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
cli._end_in_order_on_signals()
try:
    Callback()
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_process_1_is_named_without_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cmdline").write_text("/sbin/init\0--password=secret\0")
    monkeypatch.setattr("worker.environment.ROOT", tmp_path)
    assert collect()["pid1"] == "/sbin/init"


def test_every_table_is_printed_on_the_console_that_reads_no_markup() -> None:
    here = [path for room in ("commands", "suite", "analysis") for path in (REPOSITORY / room).rglob("*.py")]
    own = {path.relative_to(REPOSITORY).as_posix() for path in here if " Console(" in path.read_text()}
    assert own == set()
