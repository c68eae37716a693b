"""The measuring tools of the image, run inside the target: there is nobody else in it to run them."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from worker.probes.probe import ProbeError

MISSING = "the image holds it: bench image build; on a tree of your own, install it"


def find(*names: str) -> str:
    """Return the path of the first of the programs that is there. Raises ProbeError."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise ProbeError(f"{names[0]} is not installed here", remedy=MISSING)


def version_of(program: str, least: tuple[int, int]) -> str:
    """Return the version that the program prints. Raises ProbeError when it is too old, or prints none."""
    printed = run([program, "--version"]).stdout
    match = re.search(r"(\d+)\.(\d+)\S*", printed)
    name = program.rpartition("/")[2]
    other = not printed.startswith(name.rstrip("0123456789"))  # a distribution's wrapper, or another program
    if other or not match or (int(match[1]), int(match[2])) < least:
        words = printed.strip().splitlines()[:1] or ["nothing"]
        wanted = ".".join(map(str, least))
        raise ProbeError(f"{name} {wanted} or newer is needed; here it says {words[0][:80]!r}", remedy=MISSING)
    return match[0]


def run(
    argv: Sequence[str], *, variables: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run to the end, whatever its status. Raises ProbeError when it cannot be started, or does not end."""
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=variables,
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise ProbeError(f"{argv[0]} cannot be started: {error.strerror}", remedy=MISSING) from error
    except subprocess.TimeoutExpired:
        raise ProbeError(
            f"{argv[0]} has not ended after {timeout_s:g} s", remedy="see what else uses the machine"
        ) from None


@contextmanager
def serving(argv: Sequence[str], ready: str) -> Iterator[str]:
    """Run a server until the end of the block. Yields the part of its output that matches ``ready``.

    Only its own output says that it serves: it would take a test connection for its client. Raises ProbeError.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as process:
        try:
            announced = next((match[0] for line in process.stdout or () if (match := re.search(ready, line))), None)
            if announced is None:
                words = process.communicate()[1].strip()[-300:] or "it says nothing"
                raise ProbeError(f"{argv[0]} does not serve: {words}", remedy="run it again: another port is chosen")
            yield announced
        finally:
            process.kill()
