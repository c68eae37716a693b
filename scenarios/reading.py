"""A job's data set on the host's side: how it is read, the page cache as planned, and what the record says of both."""

import re
from collections.abc import Callable, Mapping, Sequence

from scenarios.members import plugin_of
from suite.errors import CommandError, MeasurementError, option
from suite.interfaces import Node, Observer
from suite.job.datasets import LEAST_WARM, MOST_COLD, MOST_STILL_MAPPED, Dataset
from suite.job.job import Job, Loading
from suite.job.properties import DISK_STAND_INS
from suite.plan import Trial
from suite.registries import DATA_KINDS
from suite.untrusted.parse import parse_object
from worker.spec import Data

TEMPORARY = "/tmp"  # noqa: S108 - inside of a target, where the worker makes a directory of its own
SHARED = "virtiofs"
"""The type of a file system that a guest shares with its host, each with a page cache of its own."""


def data_of(trial: Trial, node: Node) -> Data | None:
    """Return the data set of the specification; None for a job whose data are drawn."""
    if trial.job.dataset:
        return data_at(_directory(node), trial.job.dataset, trial.job)
    return None


def data_at(directory: str, dataset: Dataset, job: Job) -> Data:
    """Return a data set in a directory, as a job reads it."""
    loading = job.loading or Loading()
    return Data(
        kind=DATA_KINDS.place(dataset.kind),
        plugin=plugin_of(DATA_KINDS, dataset.kind, dataset.kind_sha256),
        directory=directory,
        loader_workers=len(job.envelope.cpus) if loading.loader_workers is None else loading.loader_workers,
        decoder=loading.decoder,
        crop=loading.crop,
        frame_stride=dataset.frame_stride or 1,
    )


def arrange_page_cache(
    trial: Trial, node: Node, launch_of: Callable[[Node, Trial], list[str]], observer: Observer
) -> Mapping[str, object]:
    """Bring the target's page cache into the planned state; ``launch_of`` says how the worker is launched on a node.

    Returns what the target then sees, as fields of ``records.DataUse``; nothing for a trial without a data set. Raises
    MeasurementError when it sees other data, or does not come into the state.
    """
    if trial.job.dataset is None or trial.job.page_cache is None:
        return {}
    observer.phase("page cache", trial.job.page_cache)
    dataset = trial.job.dataset
    state = trial.job.page_cache
    backing = node.backing
    for holder in filter(None, (node, backing) if state == "cold" else ()):
        filesystem, _ = mounted_at(holder, _directory(holder))
        if filesystem in DISK_STAND_INS:
            raise MeasurementError(
                f"the data set of {holder.name} lies on {filesystem}, from whose memory it cannot be evicted",
                kind="page-cache",
                remedy=f"copy it to a disk with another file system, such as ext4, or use {option('cache')} warm",
            )
    below = None
    if state == "cold" and backing:
        below = _arranged(trial, dataset, state, backing, launch_of(backing, trial))
    share = _arranged(trial, dataset, state, node, launch_of(node, trial))
    filesystem, device = mounted_at(node, _directory(node))
    if share is None and backing and filesystem != SHARED:
        # One kernel, one cache: who may not see it from inside is told from below.
        if state == "cold":
            share = below
        else:
            share = _arranged(trial, dataset, state, backing, launch_of(backing, trial))
    seen = {"page_cache_share": share, "filesystem": filesystem, "device": device}
    return {**seen, "listing_sha256": dataset.listing_sha256}


def _arranged(trial: Trial, dataset: Dataset, state: str, node: Node, argv: Sequence[str]) -> float | None:
    """Return the share of the data set that the cache of the node then holds; None where it does not tell."""
    command = [*argv, "--page-cache", state, _directory(node)]
    try:
        answer = asked(node, command, trial.trial_timeout_s)
    except CommandError as error:
        raise _unread(error, trial.trial_timeout_s, command) from error
    if answer.get("sha256") != dataset.listing_sha256:
        raise MeasurementError(
            f"the target sees another data set: {answer.get('files')} files of {answer.get('size_bytes')} bytes, where "
            f"{dataset.images} images in {dataset.size_bytes} bytes were planned",
            kind="dataset",
            command=command,
            remedy="nothing may change the data set during a run; start a new run with the set as it is now",
        )
    share = answer.get("page_cache_share")
    if share is None or node.facts.get("seccomp") == "sentry":  # to which every page of a file is resident
        return None
    if not isinstance(share, float | int) or not 0 <= share <= 1:
        raise MeasurementError(f"the share of the page cache is {share!r}", kind="protocol", command=command)
    if state == "cold" and share > MOST_COLD:
        why = f"{share:.1%} of the data set are still in the page cache, {MOST_COLD:.0%} may be"
        remedy = "something else reads the data set, or holds it in memory: end it and run again"
        raise MeasurementError(why, kind="page-cache", command=command, remedy=remedy)
    if state == "warm" and share < LEAST_WARM:
        why = f"after all of it was read, the page cache holds {share:.1%} of the data set, {LEAST_WARM:.0%} are needed"
        remedy = f"give the targets more with {option('memory')}, or use {option('cache')} cold"
        raise MeasurementError(why, kind="page-cache", command=command, remedy=remedy)
    return float(share)


def empty_page_cache(trial: Trial, node: Node, launch_of: Callable[[Node, Trial], list[str]]) -> float:
    """Drop the userland and the data volume of a node from its page cache. Returns the share that stays.

    Raises MeasurementError where that cannot be done or seen, and if too much stays.
    """
    holder = node.backing or node  # a user who owns no file is not shown which are in memory
    command = [*launch_of(holder, trial), "--page-cache", "empty", "/", *filter(None, [holder.data])]
    share: object = None
    why = "its kernel hides which files are in memory"
    if holder.userland is None:
        why = "its programs are those of this machine, which others use"
    elif not trial.properties.direct_io:
        why = "its disks are read through the host's page cache"
    else:
        share = asked(holder, command, trial.trial_timeout_s).get("page_cache_share")
    if isinstance(share, float | int) and share > MOST_STILL_MAPPED:
        most = f"{MOST_STILL_MAPPED:.0%}"
        why = f"{share:.1%} of its programs and files stay in memory, {most} may: something else uses them"
    elif isinstance(share, float | int):
        return float(share)
    raise MeasurementError(
        f"a cold start on {node.name} cannot be measured: {why}",
        kind="page-cache",
        command=command,
        remedy=f"use {option('cache')} warm, or other targets",
    )


def _unread(error: CommandError, timeout_s: float, command: Sequence[str]) -> MeasurementError:
    if error.returncode is None:
        why = f"the data set was not read within {timeout_s:g} s"
        kind = "timeout"
        remedy = f"allow more with {option('trial_timeout')}"
    else:
        why = f"in the target: {error.message}"
        kind = "dataset"
        remedy = "let all users read it: chmod -R a+rX DIRECTORY"
    return MeasurementError(why, kind=kind, command=command, output_tail=error.output_tail, remedy=remedy)


def asked(node: Node, argv: Sequence[str], timeout_s: float) -> Mapping[str, object]:
    """Return the JSON object that the worker answers with. Raises CommandError, and MeasurementError on other text."""
    answer = node.run(argv, timeout_s=timeout_s).stdout
    try:
        return parse_object(answer)
    except ValueError as error:
        raise MeasurementError(
            f"the answer cannot be read ({error}): {answer[:200]!r}", kind="protocol", command=argv
        ) from error


def mounted_at(node: Node, directory: str) -> tuple[str, str] | tuple[None, None]:
    """Return file system and device of a directory, by proc_pid_mountinfo(5): the last mount on one place is seen."""
    mountinfo = node.run(["cat", "/proc/self/mountinfo"], check=False).stdout
    longest: tuple[int, str, str] | None = None
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        kind_and_source = after.split(" ")
        if not dash or len(fields) < 5 or len(kind_and_source) < 2:
            continue
        mount_point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = directory == mount_point or directory.startswith(mount_point.rstrip("/") + "/")
        if inside and (longest is None or len(mount_point) >= longest[0]):
            longest = (len(mount_point), kind_and_source[0], kind_and_source[1])
    if longest:
        return longest[1:]
    return (None, None)


def _directory(node: Node) -> str:
    if node.data is None:
        raise MeasurementError(
            f"{node.name} has no data volume, and the job reads a data set",
            kind="dataset",
            remedy="this is a mistake of the suite's: please report it with the command",
        )
    return node.data
