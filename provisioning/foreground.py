"""Commands that this process waits for, outside of any trial."""

import re
import signal
import subprocess
from collections.abc import Collection, Sequence

from provisioning.processes import installing, run_apart
from suite.errors import CommandError, RequestError

CALLED_WITHIN_S = 60.0


def call(
    argv: Sequence[str],
    text: str = "",
    *,
    allowed: str | None = None,
    remedy: str | None = None,
    without: Collection[str] = (),
) -> str:
    """Run a program ``without`` some variables, and return its standard output.

    Raises CommandError when it fails, unless its output matches ``allowed``, and RequestError when it is missing.
    """
    try:
        answer = run_apart(argv, CALLED_WITHIN_S, text=text, without=without)
    except FileNotFoundError as error:
        raise RequestError(f"{argv[0]} is not installed", remedy=remedy or installing(argv[0])) from error
    except CommandError as error:
        raise CommandError(argv, None, "", remedy=remedy) from error
    if answer.returncode and (allowed is None or not re.search(allowed, answer.stdout + answer.stderr)):
        raise CommandError(argv, answer.returncode, answer.stderr or answer.stdout, remedy=remedy)
    return answer.stdout


def run(argv: Sequence[str]) -> int:
    """Run it to its end with this process's own output. An interruption is passed on, then raised."""
    with _start(argv, None) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGTERM)
            child.wait()
            raise


def tell(argv: Sequence[str], text: str, timeout_s: float) -> None:
    """Run it with a text on its standard input. Raises CommandError when it fails or takes longer."""
    with _start(argv, subprocess.PIPE) as child:
        try:
            child.communicate(text.encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            raise CommandError(argv, None, "") from None
    if child.returncode:
        raise CommandError(argv, child.returncode, "")


def _start(argv: Sequence[str], stdin: int | None) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL if stdin is None else stdin)
    except OSError as error:
        raise RequestError(
            f"cannot start {argv[0]}: {error.strerror}", remedy="name a program by its full path"
        ) from error
