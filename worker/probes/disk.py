"""The disk probe: fio on the data directory, with direct I/O, so that the disk is measured and not a page cache."""

import os
import shutil
import tempfile
from pathlib import Path

from worker.probes import fio, jobfile, tools
from worker.probes.probe import Probe
from worker.probes.reading import Measured, ProbeError
from worker.probes.request import Request

DEFAULT_JOBS = Path(__file__).with_name("disk.fio")
OLDEST_FIO = (3, 0)  # its JSON counts latencies in nanoseconds from here on
SPARE = 1.05
"""The file system's metadata takes room, too."""


def measure(request: Request) -> Measured:
    """Return what fio measures: with the jobs of the suite, or with those of the user's job file."""
    program = tools.find("fio")
    version = tools.version_of(program, OLDEST_FIO)
    jobs, needed_bytes = _jobs(request)
    with place_in(request.directory) as place, tempfile.TemporaryDirectory() as notes:
        check_space(place, needed_bytes)
        written = Path(notes, "report.json")
        Path(notes, "jobs.fio").write_text(jobs)
        # A file and not standard output: there fio's notes and its report mix.
        argv = [program, "--output-format=json", f"--output={written}", f"--directory={place}", "--eta=never"]
        size, runtime = f"{jobfile.FILE_MIB[request.size]}m", str(jobfile.RUNTIME_S[request.size])
        variables = {**os.environ, "SIZE": size, "RUNTIME": runtime}
        done = tools.run([*argv, f"{notes}/jobs.fio"], variables=variables)
        metrics = fio.readings(written.read_text() if written.exists() else "", done.stderr + done.stdout)
    if done.returncode:
        raise fio.failure([], done.stderr)
    details = {"fio": version, "job": jobs if request.job else "default", "size": size, "runtime_s": int(runtime)}
    return Measured(metrics, details)


def _jobs(request: Request) -> tuple[str, int]:
    """Return the job file as fio is given it, and the bytes that its files take."""
    try:
        text = DEFAULT_JOBS.read_text() if request.job is None else jobfile.render(jobfile.parse(request.job))
        return text, written_bytes(request.size, request.job)
    except jobfile.JobFileError as error:
        raise ProbeError(f"the job file: {error}", remedy="correct the file given with --fio-job") from None


def written_bytes(size: str, job: str | None) -> int:
    """Return how many bytes the files of all jobs take. Raises JobFileError for a job file that cannot be used."""
    return jobfile.FILE_MIB[size] << 20 if job is None else jobfile.needed_bytes(jobfile.parse(job), size)


def place_in(directory: str | None) -> "tempfile.TemporaryDirectory[str]":
    """Make a folder in the data directory, which is gone at the end. Raises ProbeError where there can be none."""
    if directory is None:
        raise ProbeError("there is no data directory to measure", remedy="open the target with room to write")
    try:
        return tempfile.TemporaryDirectory(prefix="virtbench-probe-", dir=directory)
    except OSError as error:
        raise ProbeError(
            f"cannot write in the data directory {directory}: {error.strerror}",
            remedy="open the target with room to write",
        ) from error


def check_space(place: str, needed_bytes: int) -> None:
    """Raise ProbeError, with the arithmetic, where the file system of the place is too full."""
    free = shutil.disk_usage(place).free
    if free < needed_bytes * SPARE:
        raise ProbeError(
            f"the jobs need {needed_bytes / 1e6:.0f} MB, the data directory has room for {free / 1e6:.0f} MB",
            remedy="make size= of the jobs smaller, choose a smaller --profile, or free some space",
        )


DISK = Probe("disk", measure, takes_job=True, written_bytes=written_bytes)
