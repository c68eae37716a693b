"""The generated sets in the suite's own folder."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scenarios.datasets.generate import is_unchanged
from scenarios.datasets.manifest import MANIFEST, PLAN, SetManifest, SetPlan, read_manifest, read_plan
from suite.errors import RequestError

MAKE_ONE = "make one with: bench data make --images 1000"


@dataclass(frozen=True)
class Found:
    """A generated set. ``manifest`` is None for one that was begun and is not finished."""

    directory: Path
    plan: SetPlan
    manifest: SetManifest | None


def data_folder(home: Path) -> Path:
    """Return where sets are made unless another place is given."""
    return home / "data"


def generated_sets(home: Path) -> list[Found]:
    """Return the sets: finished ones first, and of these the newest. What cannot be read as one is left out."""
    dated = []
    for path in data_folder(home).glob(f"*/{PLAN}"):
        # One of another version can be neither used nor continued.
        with suppress(RequestError):
            if plan := read_plan(path.parent):
                found = Found(path.parent, plan, read_manifest(path.parent))
                written_ns = path.with_name(MANIFEST if found.manifest else PLAN).stat().st_mtime_ns
                dated.append((found.manifest is not None, written_ns, str(path.parent), found))
    return [each[-1] for each in sorted(dated, reverse=True, key=lambda each: each[:3])]


def newest(home: Path) -> Path:
    """Return the newest finished set. Raises RequestError when there is none."""
    found = generated_sets(home)
    if not found:
        raise RequestError(f"no data set has been generated in {data_folder(home)}", remedy=MAKE_ONE)
    if found[0].manifest is None:
        raise unfinished(found[0].directory, found[0].plan)
    return found[0].directory


def finished(directory: Path) -> SetManifest:
    """Return the manifest of a set that is whole by its sizes. Raises RequestError for any other directory."""
    manifest, plan = read_manifest(directory), read_plan(directory)
    if manifest is None and plan:
        raise unfinished(directory, plan)
    if manifest is None:
        raise RequestError(
            f"{directory} is no generated data set", remedy=f"{MAKE_ONE}, or name your own as imagefolder:{directory}"
        )
    if not is_unchanged(directory, manifest):
        raise changed(directory, manifest)
    return manifest


def changed(directory: Path, plan: SetPlan) -> RequestError:
    return RequestError(
        f"{directory} has changed since it was made",
        remedy=f"bench data verify {directory} says how; {continuing(directory, plan)} mends it",
    )


def unfinished(directory: Path, plan: SetPlan) -> RequestError:
    return RequestError(
        f"the making of {directory} was interrupted", remedy=f"{continuing(directory, plan)} continues it"
    )


def continuing(directory: Path, plan: SetPlan) -> str:
    """Return the command that makes this very set."""
    usual = {"format": "imagefolder", "size": "imagenet", "seed": 0, "classes": 1000}
    values = {name: getattr(plan, name) for name in usual}
    changed = [f"--{name} {value}" for name, value in values.items() if value not in (usual[name], None)]
    return " ".join(["bench data make --images", str(plan.images), *changed, "--out", str(directory)])
