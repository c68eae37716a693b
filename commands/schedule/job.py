"""Make the job that a timer starts from the options of ``bench sweep schedule``."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from provisioning.timers.base import ScheduledJob, check_name
from suite.errors import RequestError
from suite.results.runs import find_runs
from suite.results.store import RESULTS
from suite.schedule_specification import parse_schedule
from suite.sweep.file import load_sweep
from suite.units import parse_share

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Timers give a job a shorter one, without the programs that make networks and disks."""


def job_of(options: dict[str, Any]) -> ScheduledJob:
    """Return the job; everything is checked before anything is installed. Raises RequestError."""
    file = options["file"]
    if file is None or options["every"] is None:
        raise RequestError(
            "FILE and --every are required",
            remedy='bench sweep schedule FILE --every "02:00 daily"; or --list, --remove NAME',
        )
    load_sweep(file)  # refused now, and not at two in the morning
    name = check_name(options["name"] or file.stem)
    into = (options["into"] or RESULTS / name).absolute()
    return ScheduledJob(
        name=name,
        schedule=parse_schedule(options["every"]),
        argv=(*bench_argv(), "sweep", "schedule-run", str(file.absolute()), "--into", str(into), *_checked(options)),
        directory=str(Path.cwd()),
        environment={"PATH": PATH} | {key: os.environ[key] for key in ("VIRTBENCH_HOME",) if key in os.environ},
        log=f"{into}.log",
    )


def _checked(options: dict[str, Any]) -> list[str]:
    """Return the options of ``schedule-run``, each as it will be read there."""
    words: list[str] = []
    if (options["baseline"] is None) != (options["fail_above"] is None):
        raise RequestError("--baseline and --fail-above need each other", remedy="give both, or none")
    if options["baseline"]:
        if not find_runs([options["baseline"]]):
            raise RequestError(f"--baseline {options['baseline']} holds no run", remedy="name a run or a sweep")
        parse_share(options["fail_above"])
        words += ["--baseline", str(options["baseline"].absolute()), "--fail-above", options["fail_above"]]
    if options["notify"]:
        words += ["--notify", shlex.join(notify_argv(options["notify"]))]
    if options["keep_last"] is not None:
        if options["keep_last"] < 1:
            raise RequestError(f"--keep-last {options['keep_last']} would keep nothing", remedy="give a number above 0")
        words += ["--keep-last", str(options["keep_last"])]
    return words


def notify_argv(text: str) -> list[str]:
    """Split a command as it is typed into words. Raises RequestError for no words, or an open quote."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise RequestError(f"--notify {text}: {error}", remedy="quote it as on a command line") from error
    if not words:
        raise RequestError("--notify names no program", remedy='write it as "mail -s regression me@example.org"')
    return words


def bench_argv() -> list[str]:
    """Return the command that starts this bench from anywhere: its interpreter and its file, both absolute."""
    return [sys.executable, str(Path(__file__).resolve().parents[2] / "cli.py")]
