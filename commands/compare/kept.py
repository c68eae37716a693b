"""Keeps the output of ``bench compare`` and ``bench report``, and prints it again while nothing has changed.

RUN/.kept/NAME is sealed by a digest of the records' bytes, of the suite's version and code, and of a secret of this
user: a file that is damaged, out of date or from elsewhere is written again. It is text, and nothing of it is run.
"""

import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from sysconfig import get_path
from typing import Any, TextIO, cast

from provisioning.paths import home, state
from suite.errors import RequestError
from suite.results import files
from suite.results.layout import KEPT, PLOTS, SWEEP
from suite.selftest.certificate import FILE as CERTIFICATE
from suite.untrusted.console import PlainConsole
from suite.untrusted.terminal import CleanStream
from suite.version import suite_version

_READ = (".json", ".pt")
"""The endings of the files that a comparison reads; of a kept model only the size."""
Printed = list[tuple[int, str]]
"""Texts in their order: 0 went to standard output, 1 to standard error."""
Listing = tuple[tuple[str, int, int], ...]
"""Path, time and size of all that a comparison reads; nothing where its output cannot be kept."""


@lru_cache(1)  # the text and the figures of a comparison are sealed one after the other
def _state(version: str, *found: tuple[str, int, int]) -> bytes:
    """Return the digest of files, of the suite, and of when a package was last installed."""
    packages = Path(get_path("purelib"))
    installation = repr((version, packages.stat().st_mtime_ns))
    digest = hashlib.sha256(installation.encode())
    for path, _, size in found:
        content = b""
        if not path.endswith(".pt"):
            content = files.read(Path(path))
        line = f"\n{path} {size} {_sha256(content)}"
        digest.update(line.encode(errors="backslashreplace"))
    return digest.digest()


def once(
    directories: Sequence[Path],
    request: Mapping[str, object],
    make: Callable[[], Iterable[Path]],
    listed: Listing | None = None,
    *,
    silently: bool = False,
) -> None:
    """Print what ``make`` prints and keep it with the files that it returns, or print what was kept of it.

    ``listed`` is the listing of the directories from before, where their records are read already. ``silently`` it is
    kept for the next time alone.
    """
    console = PlainConsole()
    form = {"width": console.width, "colour": console.color_system, "encoding": console.encoding}
    texts = map(str, directories)
    name = repr((*texts, *request.items(), *form.items()))
    digest = _sha256(name.encode(errors="backslashreplace"))
    path = directories[0] / KEPT / digest[:32]
    before = listing(directories) if listed is None else listed
    printed = _kept(path, before)
    if printed is not None:
        if not silently:
            _print_again(printed)
        return
    with _recorded(silently=silently) as printed:
        written = make()
    with suppress(OSError, RequestError):  # the directory cannot be written to
        # Else a record came in meanwhile, and the output may have it or not.
        if before and before == listing(directories):
            digests = {str(output): _sha256(files.read(output)) for output in written}
            text = json.dumps([printed, digests]).encode()
            seal = _seal(before, text)
            with files.whole(path, below=directories[0], sync=False) as file:
                file.write(seal + b"\n" + text)


def _print_again(printed: Printed) -> None:
    streams = (sys.stdout, sys.stderr)
    for number, part in printed:
        stream = _raw(streams[number])
        stream.write(part)
        stream.flush()


def _kept(path: Path, listed: Listing) -> Printed | None:
    """Return the output that was kept; None unless it is whole and up to date."""
    try:
        # Where nothing is kept, thousands of records are hashed when the output is there, and not before it.
        seal, _, text = files.read(path).partition(b"\n")
        if not hmac.compare_digest(seal, _seal(listed, text)):
            return None
        printed, digests = json.loads(text)
        for output, digest in digests.items():
            content = files.read(Path(output))
            if _sha256(content) != digest:
                return None
    except (OSError, RequestError):
        return None
    return cast(Printed, printed)


def _seal(listed: Listing, text: bytes) -> bytes:
    key = _secret()
    read = _state(suite_version(), *listed)
    seal = hmac.new(key, read + text, "sha256")
    return seal.hexdigest().encode()


class _Recorder:
    """Writes to a stream, and notes what was written; silently it notes it alone."""

    def __init__(self, stream: TextIO, number: int, printed: Printed, *, silently: bool) -> None:
        self._stream = stream
        self._number = number
        self._printed = printed
        self._silently = silently

    def write(self, text: str) -> int:
        self._printed.append((self._number, text))
        if self._silently:
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever a stream has)
        return getattr(self._stream, name)


@contextmanager
def _recorded(*, silently: bool) -> Iterator[Printed]:
    """Yield what is printed until the context ends."""
    printed: Printed = []
    output = _recording(sys.stdout, 0, printed, silently=silently)
    errors = _recording(sys.stderr, 1, printed, silently=silently)
    with redirect_stdout(output), redirect_stderr(errors):
        yield printed


def _recording(stream: TextIO, number: int, printed: Printed, *, silently: bool) -> TextIO:
    recorder = _Recorder(_raw(stream), number, printed, silently=silently)
    return cast(TextIO, CleanStream(cast(TextIO, recorder)))


def _raw(stream: TextIO) -> TextIO:
    """Return the stream behind one that cleans: what was kept was cleaned before."""
    return cast(TextIO, getattr(stream, "rich_proxied_file", stream))


def listing(directories: Sequence[Path]) -> Listing:
    """Return the listing of directories; an empty one for directories with a link, or that cannot be read."""
    try:
        return tuple(_files(directories))
    except OSError:
        return ()


def _files(directories: Sequence[Path]) -> Iterator[tuple[str, int, int]]:
    """Yield path, time and size of all that a comparison of directories reads. Raises OSError for a link among it."""
    sweeps = (directory.parent / SWEEP for directory in directories)
    outside = (home() / CERTIFICATE, *sweeps)
    paths = [str(path) for path in outside]
    trees = map(os.walk, directories)
    for top, folders, names in chain.from_iterable(trees):
        visible = (name for name in folders if name != PLOTS and not name.startswith("."))
        folders[:] = sorted(visible)
        paths += [f"{top}/{name}" for name in sorted(names) if name.endswith(_READ)]
        if any(Path(top, name).is_symlink() for name in folders):
            raise OSError("a link leads to records elsewhere")
    for path in paths:
        with suppress(FileNotFoundError):
            status = os.lstat(path)
            yield path, status.st_mtime_ns, status.st_size


def _secret() -> bytes:
    """Return this user's secret, drawn if there is none: output that another user has sealed is not shown."""
    path = state("kept") / "secret"
    if not path.exists():
        with suppress(FileExistsError), files.whole(path, new=True) as file:
            file.write(secrets.token_bytes(32))
    return files.read(path)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
