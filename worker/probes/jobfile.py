"""A user's own fio job file: what it may use of fio. The host checks it before anything is started, the worker again.

fio can run commands, read and write any file, and start servers of its own: keys and values are therefore those known
to be harmless, and what fio is given is written anew from what was understood here, never the user's text.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

FILE_MIB = {"smoke": 128, "quick": 512, "paper": 4096}
RUNTIME_S = {"smoke": 2, "quick": 5, "paper": 30}
GLOBAL = "global"
VARIABLES = ("${SIZE}", "${RUNTIME}")
"""The values that a job file may leave to the profile; fio takes them from its environment."""
CHOICES = {
    "rw": ("read", "write", "randread", "randwrite", "rw", "readwrite", "randrw"),
    "ioengine": ("libaio", "io_uring", "psync", "sync", "pvsync", "pvsync2", "vsync", "posixaio", "mmap"),
}
KEYS = frozenset(
    (
        *("rw", "ioengine", "bs", "size", "io_size", "runtime", "time_based", "ramp_time", "stonewall", "direct"),
        *("iodepth", "iodepth_batch", "iodepth_low", "numjobs", "group_reporting", "new_group", "thread", "loops"),
        *("rwmixread", "rwmixwrite", "random_distribution", "random_generator", "randrepeat", "randseed"),
        *("norandommap", "percentage_random", "refill_buffers", "scramble_buffers", "zero_buffers", "overwrite"),
        *("buffer_compress_percentage", "dedupe_percentage", "invalidate", "fsync", "fdatasync", "end_fsync"),
        *("fallocate", "thinktime", "rate", "rate_iops", "startdelay", "nrfiles", "sync", "hipri", "number_ios"),
    )
)
_ALIASES = {"readwrite": "rw", "blocksize": "bs", "wait_for_previous": "stonewall"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_VALUE = re.compile(r"[A-Za-z0-9_.,:%-]{1,64}")
_SIZE = re.compile(r"(\d{1,15})([kmgt]?)(?:i?b)?", re.IGNORECASE)


class JobFileError(Exception):
    """The job file cannot be run; the message names the line, and what would do."""


@dataclass(frozen=True)
class Section:
    """``[name]`` with its keys; an empty value is a key alone."""

    name: str
    keys: Mapping[str, str]


def parse(text: str) -> list[Section]:
    """Return the sections of a job file. Raises JobFileError on anything that is not known to be harmless."""
    sections = list(_sections(text))
    names = [section.name for section in sections if section.name != GLOBAL]
    if not names:
        raise JobFileError("the job file has no job: write [name] and what it does")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise JobFileError(f"two jobs are called {twice[0]}: their metrics could not be told apart")
    return sections


def _sections(text: str) -> Iterator[Section]:
    """Yield the sections; each is complete when the next begins."""
    keys: dict[str, str] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = re.split("[;#]", raw, maxsplit=1)[0].strip()
        if line.startswith("[") and line.endswith("]"):
            if not _NAME.fullmatch(name := line[1:-1]):
                raise JobFileError(f"line {number}: a job's name is of letters, digits, - and _, not {name[:80]!r}")
            keys = {}
            yield Section(name, keys)
        elif line and keys is None:
            raise JobFileError(f"line {number} stands before the first [section]: {line[:80]!r}")
        elif line and keys is not None:
            key, value = _setting(number, line)
            keys[key] = value


def _setting(number: int, line: str) -> tuple[str, str]:
    written, _, value = (part.strip() for part in line.partition("="))
    key = _ALIASES.get(written, written)
    if key not in KEYS:
        raise JobFileError(f"line {number}: {written[:80]!r} may not be used; what may be: {', '.join(sorted(KEYS))}")
    if value not in ("", *VARIABLES) and not _VALUE.fullmatch(value):
        raise JobFileError(f"line {number}: {key} is {value[:80]!r}; letters, digits and _.,:%- may be used")
    if (choices := CHOICES.get(key)) and value.partition(":")[0] not in choices:
        raise JobFileError(f"line {number}: {key} is {value[:80]!r}; it can be {', '.join(choices)}")
    if key == "numjobs" and not (value.isascii() and value.isdigit() and 1 <= int(value) <= 1024):
        raise JobFileError(f"line {number}: numjobs is {value!r}; give a number from 1 to 1024")
    return key, value


def render(sections: list[Section]) -> str:
    """Return the job file that fio is given."""
    return "\n".join(
        line
        for section in sections
        for line in (f"[{section.name}]", *(f"{key}={value}" if value else key for key, value in section.keys.items()))
    )


def needed_bytes(sections: list[Section], size: str) -> int:
    """Return the bytes of the files of all jobs: each job has files of its own. Raises JobFileError."""
    common: dict[str, str] = {}
    total = 0
    for section in sections:
        if section.name == GLOBAL:
            common |= section.keys
            continue
        keys = {**common, **section.keys}
        written, size_bytes = keys.get("size", ""), FILE_MIB[size] << 20
        if written != VARIABLES[0]:
            found = _SIZE.fullmatch(written)
            if not found or not int(found[1]):
                wanted = "write size=${SIZE} (of the profile), or such as size=1g"
                raise JobFileError(f"the job {section.name} has no size: {wanted}")
            size_bytes = int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2].lower()]
        total += size_bytes * int(keys.get("numjobs", "1"))
    return total
