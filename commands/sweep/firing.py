"""``bench sweep schedule-run``: one firing of a schedule: run the sweep, compare it, and notify."""

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from commands.paths import UserPath
from commands.results.removal import removable, remove
from commands.sweep.resolve import PlanFile
from commands.sweep.schedule import check_gate, firing_options, notify_argv, refuse_itself
from provisioning import foreground
from provisioning.kubernetes import owned
from provisioning.paths import bench_argv
from suite.errors import BenchError, RequestError
from suite.results.files import read_small
from suite.results.layout import FIRING
from suite.results.runs import contains, find_runs
from suite.results.store import Run, StoreError, new_run_directory, write_atomic
from suite.sweep.locks import holders
from suite.units import parse_share
from suite.untrusted.parse import parse_object

NOTIFY_TIMEOUT_S = 60.0
_SLOWER = 3
"""The exit code of a firing that was slower."""


@click.command("schedule-run")
@click.argument("file", type=PlanFile())
@click.option("--into", required=True, type=UserPath(), help="Parent directory of the firings.")
@firing_options
def schedule_run(
    file: Path,
    into: Path,
    baseline: Path | None,
    fail_above: str | None,
    notify: str | None,
    keep: int | None,
) -> None:
    """Run one firing of a schedule, also by hand. Print the result as JSON, and write it to schedule.json.

    Exit codes: 0 ok (with --fail-above: not slower), 1 failed or incomplete, 3 slower, 4 cannot tell; 2 the request was
    wrong.

    \b
    Examples:
      bench sweep schedule-run nightly --into results/nightly
      bench sweep schedule-run nightly --into results/nightly --baseline results/good --fail-above 5%
      bench sweep schedule-run nightly --into results/nightly --keep 14 --fail-above 5%
    """
    check_gate(baseline, fail_above, keep)
    words = notify_argv(notify) if notify else None
    share = parse_share(fail_above) if fail_above else None
    if baseline:
        refuse_itself(baseline, into)
    with Run(into).exclusive():  # two firings at once would measure each other
        owned.use_account(into)
        old: list[Path] = []
        if baseline:
            old = [baseline]
        elif fail_above:
            old = _not_slower(into)[-(keep or 0) :]
        result = _fire(file, into, old, share)
        result["removed"] = _remove_older(into, keep, old) if keep else []
        _store(result)
    text = json.dumps(result, indent=1)
    click.echo(text)
    if result["outcome"] != "ok":
        if words:
            foreground.tell(words, text, NOTIFY_TIMEOUT_S)
        sys.exit(result["exit_code"])


def _store(result: dict[str, Any]) -> None:
    """Write the result to the sweep's directory. A full disk is one more thing to report."""
    directory = Path(result["directory"])
    text = json.dumps(result, indent=1)
    try:
        if directory.is_dir():
            write_atomic(directory / FIRING, text + "\n")
    except StoreError as error:
        result |= _failure(error)


def _failure(error: BenchError) -> dict[str, Any]:
    return {"outcome": "failed", "exit_code": 1, "reason": error.message}


def _firings(into: Path) -> list[Path]:
    directories = [path.parent for path in into.glob(f"*/{FIRING}")]
    return sorted(directory for directory in directories if not directory.is_symlink())


def _not_slower(into: Path) -> list[Path]:
    """Return the firings whose sweep finished and was not slower: what a further firing may be compared with."""
    usable = []
    for firing in _firings(into):
        result: Mapping[str, Any] = {}
        with suppress(OSError, ValueError):
            result = parse_object(read_small(firing / FIRING))
        if result.get("sweep_exit_code") == 0 and result.get("exit_code") != _SLOWER:
            usable.append(firing)
    return usable


def _fire(file: Path, into: Path, old: Sequence[Path], fail_above: float | None) -> dict[str, Any]:
    """Run and judge the sweep. ``outcome``: ``ok``, ``failed`` (with ``reason``), or the verdict of the gate."""
    out = new_run_directory(into)
    started_at = datetime.datetime.now(datetime.UTC)
    command = ["sweep", "run", str(file), "--wait", "--out", str(out)]
    code = foreground.run([*bench_argv(), *command])
    result: dict[str, Any] = {
        "schema_version": 3,
        "plan": str(file),
        "directory": str(out),
        "started_at": started_at.isoformat(timespec="seconds"),
        "sweep_exit_code": code,
        "outcome": "ok" if code == 0 else "failed",
        "exit_code": 1 if code else 0,
    }
    if code:
        result["reason"] = f"bench sweep run ended with exit code {code}"
    if not old or not out.is_dir():
        return result
    try:
        return result | _compared(out, old, fail_above, ok=code == 0)
    except BenchError as error:  # reported with the rest, not instead of it
        return result | _failure(error)


def _compared(out: Path, old: Sequence[Path], fail_above: float | None, *, ok: bool) -> dict[str, Any]:
    # Not at the top: pandas and scipy take most of a second, and few schedules have a baseline.
    from commands.compare.gate import judged
    from commands.compare.output import gate_output

    runs = find_runs([out])
    if not runs:
        raise RequestError(f"{out} holds no run to compare")
    baselines = [find_runs([directory]) for directory in old]
    gate = judged(baselines, runs, fail_above)
    result = {
        "baselines": list(map(str, old)),
        "gate": gate_output(gate).model_dump(mode="json"),
    }
    if ok and gate.exit_code:
        return result | {"outcome": gate.outcome, "exit_code": gate.exit_code}
    return result


def _remove_older(into: Path, keep: int, old: Sequence[Path]) -> list[str]:
    """Remove all but the newest firings; return their names for the result.

    A directory without a result of a firing, the baselines, and what another process holds are never removed.
    """
    firings = _firings(into)
    removed = []
    # The one that has just ended has no result yet, and is one of those to keep.
    superfluous = max(0, len(firings) - keep + 1)
    for firing in firings[:superfluous]:
        if holders(firing) or any(contains(firing, baseline) for baseline in old):
            continue
        try:
            remove(removable(firing))
            removed.append(str(firing))
        except (BenchError, OSError) as error:  # the next firing tries again; this result must not be lost for it
            click.echo(f"warning: cannot remove {firing}: {error}", err=True)
    return removed
