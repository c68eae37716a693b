"""Removes everything that the suite keeps on this machine, except results."""

import re
import shutil
from contextlib import suppress

from provisioning import ledger
from provisioning.images.tree import BUILDERS, LABEL, Builder
from provisioning.nodes import LocalNode, local_node
from provisioning.paths import home, runtime
from suite.errors import RequestError
from suite.results.runs import find_runs

PARTS = (
    *("blocks", "cache", "data", "data-disks", "images", "kept"),
    *("ledger", "locks", "scratch", "selftest.json", "snapshots"),
)
"""The entries of ``home`` that the suite makes; others are left alone."""
_OWN_NAME = re.compile(r" (localhost/)?virtbench([/-][a-z]+)?(:\S+)?$")


def remove_everything() -> list[str]:
    """Remove images, caches, generated data sets and the images in the engines' stores; return what was removed.

    Raises RequestError while a bench is running, and if there are results in ``home``.
    """
    if ledger.living():
        raise RequestError("a bench is running", remedy="wait until it has ended")
    parts = [path for name in PARTS if (path := home() / name).exists()]
    if runs := find_runs([path for path in parts if path.is_dir()]):
        raise RequestError(f"{home()} holds results: {runs[0]}", remedy="move them to another directory first")
    removed = []
    with local_node((), None) as node:
        for builder in BUILDERS:
            if builder.works(node):
                removed += _remove_images(node, builder)
    for path in parts:
        if path.is_dir():
            shutil.rmtree(path.resolve())  # it may be a link to another disk
        path.unlink(missing_ok=True)
        removed.append(str(path))
    for directory in (home(), runtime()):  # benches of another home use the latter
        with suppress(OSError):
            directory.rmdir()
    return removed


def _remove_images(node: LocalNode, builder: Builder) -> list[str]:
    """Remove the suite's images from an engine's store: by their names, those they had, and their label."""
    listing = [builder.program, "images", "--no-trunc", "--format"]
    named = node.run([*listing, "{{.ID}} {{.Repository}}"]).stdout.splitlines()
    # Of an image whose name went to a newer one; podman alone knows it.
    named += node.run([*listing, "{{.ID}} {{.History}}", "--filter", "dangling=true"], check=False).stdout.splitlines()
    labelled = node.run([*listing, "{{.ID}} {{.Repository}}", "--filter", f"label={LABEL}"]).stdout.splitlines()
    own = {line.split()[0]: line.split()[-1] for line in (*filter(_OWN_NAME.search, named), *labelled)}
    if own:
        node.run([builder.program, "rmi", "--force", *own], timeout_s=600.0)
    return [f"image of {builder.program}: {name}" for name in own.values()]
