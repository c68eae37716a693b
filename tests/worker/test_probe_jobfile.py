"""A user's fio job file: what is harmless runs as it was meant, everything else is refused by name."""

from typing import get_args

import pytest

from worker.probes.jobfile import FILE_MIB, JobFileError, needed_bytes, parse, render
from worker.spec import Request

MIB = 1 << 20
GOOD = """
; two jobs of one size
[global]
size=64m   # each
direct=1
ioengine = libaio

[seq]
readwrite=read
bs=1m

[mixed]
stonewall
rw=randrw
rwmixread=70
size=${SIZE}
runtime=${RUNTIME}
time_based
"""


def test_a_job_file_is_written_anew_from_what_was_understood() -> None:
    assert render(parse(GOOD)).splitlines() == [
        *("[global]", "size=64m", "direct=1", "ioengine=libaio"),
        *("[seq]", "rw=read", "bs=1m"),
        *("[mixed]", "stonewall", "rw=randrw", "rwmixread=70", "size=${SIZE}", "runtime=${RUNTIME}", "time_based"),
    ]


def test_what_was_written_anew_means_the_same() -> None:
    assert parse(render(parse(GOOD))) == parse(GOOD)


def test_the_room_is_the_sum_over_the_jobs_and_their_copies() -> None:
    assert needed_bytes(parse(GOOD), "smoke") == (64 + FILE_MIB["smoke"]) * MIB
    assert needed_bytes(parse("[a]\nsize=1G\nnumjobs=3"), "smoke") == 3 << 30
    assert needed_bytes(parse("[a]\nsize=4096"), "smoke") == 4096


def test_every_profile_has_a_size() -> None:
    assert set(FILE_MIB) == set(get_args(Request.__annotations__["size"]))


@pytest.mark.parametrize("size", ["", "size=50%", "size=0", "size=-1", "size=1x", "size=${RUNTIME}", "size"])
def test_a_job_without_a_size_has_no_known_room(size: str) -> None:
    with pytest.raises(JobFileError, match="the job a has no size"):
        needed_bytes(parse(f"[a]\nrw=read\n{size}"), "quick")


@pytest.mark.parametrize(
    "line",
    [
        *("filename=/dev/sda", "filename=x", "directory=/etc", "filename_format=../$jobname", "opendir=/etc"),
        *("exec_prerun=reboot", "exec_postrun=reboot", "include /etc/passwd", "include=x", "ioengine=exec"),
        *("ioengine=external:/tmp/evil.so", "ioengine=rdma", "write_bw_log=/etc/cron.d/x", "read_iolog=/etc/shadow"),
        *("verify_state_save=1", "cpus_allowed=0-7", "cgroup=x", "uid=0", "mem=mmap:/etc/passwd", "trim=1", "rw=trim"),
        *("bs=`reboot`", "bs=$mb_memory", "bs=${PATH}", "size=${SIZE}${PATH}", "bs=../x", "bs='/etc/passwd'"),
        *("numjobs=0", "numjobs=9999", "numjobs=x", "percentile_list=1", "gtod_reduce=1", "=", "rw", "Rw=read"),
    ],
)
def test_what_reaches_outside_or_runs_a_command_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(JobFileError, match="line 3"):
        parse(f"[a]\nsize=1m\n{line}\n")


@pytest.mark.parametrize("name", ["../../etc/x", "a b", "", "a.b/c", "$x", "a" * 65, "ä"])
def test_a_job_is_named_so_that_it_can_name_a_file_and_a_metric(name: str) -> None:
    with pytest.raises(JobFileError, match="line 1"):
        parse(f"[{name}]\nsize=1m")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no job"),
        ("; only words", "has no job"),
        ("[global]\nsize=1m", "has no job"),
        ("rw=read", "before the first"),
        ("[a\nsize=1m", "before the first"),
        ("[a]\nsize=1m\n[a]\nsize=2m", "two jobs are called a"),
        ("\0", "before the first"),
    ],
)
def test_what_is_no_job_file_says_so(text: str, says: str) -> None:
    with pytest.raises(JobFileError, match=says):
        parse(text)


def test_a_long_line_cannot_hide_a_second_one() -> None:
    """fio reads lines of 4096 characters: the rest of a longer comment is a line of its own to it."""
    assert "exec_prerun" not in render(parse("[a]\nsize=1m\n;" + "x" * 4095 + "exec_prerun=reboot"))
