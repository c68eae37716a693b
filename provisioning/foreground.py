"""Commands in the foreground: a child that talks to the same terminal, and is ended in order when this process is."""

import signal
import subprocess
from collections.abc import Sequence

from suite.errors import CommandError, RequestError


def run(argv: Sequence[str]) -> int:
    """Run it to its end with this process's own output. An interruption is handed on, waited for, and raised."""
    with _start(argv, None) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGTERM)
            child.wait()
            raise


def tell(argv: Sequence[str], text: str, timeout_s: float) -> None:
    """Give it a text on its standard input. Raises CommandError when it fails or takes longer."""
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
