"""A workload in a file of the user's own, which stands where a workload's name does: ``PATH.py`` or ``PATH.py:NAME``.

The file goes into the targets as text, as the module of another package's workload does, and is imported here from the
same text by the same code. Only a file that the user has named comes here: no record and no plan of others does.
"""

import ast
import hashlib
import re
import tempfile
from collections.abc import Mapping
from contextlib import chdir
from inspect import isfunction, signature
from pathlib import Path

from pydantic import PositiveInt, TypeAdapter, ValidationError

from suite.errors import RequestError, option
from suite.job.job import Name
from suite.registries import WORKLOADS
from worker.members import Plugin, imported, load_member
from worker.protocol import SpecError, is_own, own_frames
from worker.workloads.workload import Workload

LARGEST_BYTES = 1 << 20
_SIZES = TypeAdapter(Mapping[str, tuple[PositiveInt, PositiveInt]] | Mapping[str, PositiveInt])
_DOCUMENT = "see docs/guide/own-training.md"


def adopt(word: str) -> str:
    """Make the workload in a file known to this process. Returns its name in records and tables: that of the file.

    Raises RequestError for a file that cannot be imported, or that does not declare exactly one whole workload.
    """
    path, attribute = file_of(word)
    content = read_source(path)
    _refuse_plain(content, path)
    digest = hashlib.sha256(content).hexdigest()
    # With the digest: two files of one name are two modules, and none takes the place of a library's.
    stem = re.sub(r"\W", "_", path.stem)
    module = f"own_{stem}_{digest[:12]}"
    plugin = Plugin(module, content.decode(), digest, path.name)
    name = _free_name(path.name + (f"+{attribute}" if attribute else ""), plugin, path)
    location = f"{plugin.module}:{attribute or _only_workload(plugin, path)}"
    WORKLOADS.adopt(name, location, _whole(location, plugin, path))
    return name


def _refuse_plain(content: bytes, path: Path) -> None:
    """Raise RequestError for a file that cannot declare a workload: to import a plain script is to run it here."""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, RecursionError, ValueError):  # importing it ends at once, and names the line
        return
    imports = (ast.unparse(node).split() for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    bases = (ast.unparse(base) for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases)
    words = [word.strip(",").partition(".")[0] for text in imports for word in text]
    if "worker" not in words and not any("Workload" in base for base in bases):
        raise RequestError(
            f"{path} declares no workload",
            remedy=f"write a class derived from Workload: {_DOCUMENT}; a script runs as it is with "
            f"{option('scenario')} command {option('command')} 'python {path.name}'",
        )


def read_source(path: Path) -> bytes:
    """Return the content of the file. Raises RequestError for one that cannot be read, or sent as text."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        content.decode()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RequestError(f"cannot read the workload {path}: {why}", remedy="name a Python file of yours") from error
    if len(content) > LARGEST_BYTES:
        raise RequestError(f"{path} is larger than 1 MiB", remedy=f"a workload is one module: {_DOCUMENT}")
    return content


def sha256_of(word: str) -> str:
    """Return the digest of the file that a word names, without importing it. Raises RequestError."""
    source = read_source(file_of(word)[0])
    return hashlib.sha256(source).hexdigest()


def file_of(word: str) -> tuple[Path, str]:
    """Return the file, and the name in it; empty where none is given."""
    path, dot, attribute = word.rpartition(".py")
    return Path(path + dot), attribute.removeprefix(":")


def _free_name(name: str, plugin: Plugin, path: Path) -> str:
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise RequestError(
            f"{path}: {name!r} cannot be the name of a trial",
            remedy="rename the file: letters, digits, dots, dashes and underscores, the first a letter or digit",
        ) from error
    if name in WORKLOADS and WORKLOADS.place(name).partition(":")[0] != plugin.module:
        raise RequestError(f"two different workloads are called {name}", remedy=f"rename one of the files: {path}")
    return name


def _only_workload(plugin: Plugin, path: Path) -> str:
    """Return the name of the one workload that the module declares: an instance or, without any, a class of its own."""
    try:
        # Elsewhere, as in the targets: a file beside it that it reads does not travel.
        with tempfile.TemporaryDirectory() as elsewhere, chdir(elsewhere):
            module = imported(plugin)
    except (Exception, SystemExit) as error:
        raise _failure(path, error) from error
    named = {name: member for name, member in vars(module).items() if not name.startswith("_")}
    instances = [name for name, member in named.items() if isinstance(member, Workload)]
    candidates = instances or [name for name, member in named.items() if _is_declared(member, plugin)]
    if not candidates:
        raise RequestError(f"{path} declares no workload", remedy=f"write a class derived from Workload: {_DOCUMENT}")
    if len(candidates) > 1:
        raise RequestError(f"{path} declares {', '.join(candidates)}", remedy=f"name one: {path}:{candidates[-1]}")
    return candidates[0]


def _is_declared(each: object, plugin: Plugin) -> bool:
    return isinstance(each, type) and issubclass(each, Workload) and each.__module__ == plugin.module


def _whole(place: str, plugin: Plugin, path: Path) -> Workload:
    """Return the workload. Raises RequestError where it lacks what every workload has."""
    name = place.partition(":")[2]
    derived = f"derive it from Workload: {_DOCUMENT}"
    try:
        member = load_member("workload", place, plugin, Workload)
    except SpecError as error:
        if error.__cause__ is None:
            raise RequestError(f"{path}: {name} is no workload", remedy=derived) from error
        lacking = f"declare an instance, with all that it needs: {name.upper()} = {name}(name=..., sizes=...)"
        raise _failure(path, error.__cause__, lacking) from error
    _check_methods(type(member), path)
    try:
        sizes = _SIZES.validate_python(member.sizes)
    except ValidationError as error:
        raise RequestError(
            f"{path}: the sizes of {name} are {str(member.sizes)[:100]}",
            remedy='give batch and image size by profile: sizes={"smoke": (4, 32)}; without images {"smoke": 4}',
        ) from error
    if not sizes:
        raise RequestError(f"{path}: {name} has no sizes", remedy='give some: sizes={"smoke": (4, 32)}')
    if not member.has_images and type(member).draw is Workload.draw:
        raise RequestError(f"{path}: {name} lacks the method draw", remedy=f"let it return a batch: {_DOCUMENT}")
    return member


def _check_methods(kind: type[Workload], path: Path) -> None:
    """Raise RequestError for a method that is missing, or that cannot be called as the suite calls it."""
    if kind.build is Workload.build:
        raise RequestError(
            f"{path}: {kind.__name__} lacks the method build", remedy=f"let it return the network: {_DOCUMENT}"
        )
    for name, declared in vars(Workload).items():
        if name.startswith("_") or not isfunction(declared):
            continue
        implemented = signature(getattr(kind, name))
        expected = signature(declared)
        try:
            implemented.bind(*expected.parameters)
        except TypeError as error:
            called = f"{name}({', '.join(expected.parameters)})"
            raise RequestError(
                f"{path}: {kind.__name__}.{name}{implemented} is called as {called}: {error}",
                remedy=f"give it these parameters: {_DOCUMENT}",
            ) from error


def _failure(path: Path, error: BaseException, lacking: str = "") -> RequestError:
    """Return why the file cannot be used, with the line of it where that is known."""
    lines = [frame.lineno for frame in own_frames(error)]
    if isinstance(error, SyntaxError) and is_own(error.filename):
        lines = [error.lineno]
    where = f"{path}, line {lines[-1]}" if lines else str(path)
    why = error.msg if isinstance(error, SyntaxError) else str(error)
    return RequestError(f"{where}: {type(error).__name__}: {why}", remedy=_remedy(path, error, lacking))


def _remedy(path: Path, error: BaseException, lacking: str) -> str:
    """Return what to do about a file that cannot be used: what stands beside it is not sent into the targets."""
    if lacking and isinstance(error, TypeError):
        return lacking
    as_command = f"or use {option('scenario')} command with {option('command_files')} {path.parent}"
    if isinstance(error, ModuleNotFoundError):
        missing = ((path.parent / f"{error.name}{suffix}").exists() for suffix in (".py", "/__init__.py"))
        if any(missing):
            return f"{error.name} is not sent into the targets; move its code into {path.name}, {as_command}"
        return f"import {error.name} inside the methods: they run in the targets, and the image need not be here"
    if isinstance(error, FileNotFoundError) and (path.parent / str(error.filename)).exists():
        return f"{error.filename} is not sent into the targets; move its content into {path.name}, {as_command}"
    if isinstance(error, SystemExit):  # as of argparse
        return "move what reads arguments and ends the program under if __name__ == '__main__': the file is imported"
    return f"mend it: {_DOCUMENT}"
