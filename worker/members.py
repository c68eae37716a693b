"""Members of the suite's registries inside a target: imported from the image, or from source text that the host sent.

The image holds the suite's own members. One that another package has added is a single module, which travels with the
specification: as source text, since the packages of the host's environment are not in the target.
"""

import atexit
import hashlib
import importlib
import importlib.util
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from msgspec import Struct

from worker.protocol import PLUGINS, SpecError

_Member = TypeVar("_Member")


class Plugin(Struct, frozen=True, forbid_unknown_fields=True):
    """The module of a member that is not part of the image. ``sha256`` is the digest of its source in UTF-8."""

    module: str
    source: str
    sha256: str
    file: str
    """The name of its file, by which errors name it."""

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.source.encode()).hexdigest()
        if digest != self.sha256:
            raise ValueError(f"the source of the plugin {self.module} has the SHA-256 {digest}, and not {self.sha256}")


def load_member(key: str, place: object, plugin: Plugin | None, of: type[_Member]) -> _Member:
    """Return the member at ``place``, which the specification's ``key`` names as ``module:attribute``.

    A class of the type ``of`` stands for the member that it makes without arguments.

    Raises SpecError where there is none of the type ``of``.
    """
    module_name, _, attribute = place.partition(":") if isinstance(place, str) else ("", "", "")
    is_plugin = plugin is not None and module_name == plugin.module
    if not attribute or not (is_plugin or module_name.startswith("worker.")):
        raise SpecError(f"{key} is {place!r}; it must be module:attribute, of the worker or of the plugin that is sent")
    try:
        with redirect_stdout(sys.stderr):  # whatever it prints: standard output is for results
            if plugin and is_plugin:
                module = imported(plugin)
            else:
                module = importlib.import_module(module_name)
            member = getattr(module, attribute)
            member = member() if isinstance(member, type) and issubclass(member, of) else member
    except Exception as error:
        raise SpecError(f"{key} {place} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(member, of):
        raise SpecError(f"{key} is {place}, a {type(member).__name__}; it must be a {of.__name__}")
    return member


@cache
def imported(plugin: Plugin) -> ModuleType:
    """Write the module into a private directory, which lives as long as the process, and import it."""
    directory = tempfile.mkdtemp(prefix=PLUGINS)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory, Path(plugin.file).name)
    path.write_text(plugin.source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(plugin.module, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[plugin.module] = module  # dataclasses look their module up there
    with redirect_stdout(sys.stderr):
        spec.loader.exec_module(module)
    return module
