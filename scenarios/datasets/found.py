"""The generated sets in the suite's own folder."""

from dataclasses import dataclass
from pathlib import Path

from scenarios.datasets.generate import is_unchanged
from scenarios.datasets.manifest import MANIFEST, PLAN, Manifest, SetPlan, read_manifest, read_plan
from suite.errors import RequestError

MAKE_ONE = "make one with: bench data make --images 1000"


@dataclass(frozen=True)
class Found:
    """A generated set. ``manifest`` is None for one that was begun and is not finished."""

    directory: Path
    plan: SetPlan
    manifest: Manifest | None


def data_folder(home: Path) -> Path:
    """Return where sets are made unless another place is given."""
    return home / "data"


def generated_sets(home: Path) -> list[Found]:
    """Return the sets: finished ones first, and of these the newest. What cannot be read as one is left out."""
    found = [each for path in data_folder(home).glob(f"*/{PLAN}") if (each := _found(path.parent))]
    return sorted(found, key=lambda each: (each.manifest is not None, _time(each), str(each.directory)), reverse=True)


def _found(directory: Path) -> Found | None:
    try:
        plan = read_plan(directory)
        return Found(directory, plan, read_manifest(directory)) if plan else None
    except RequestError:
        return None  # of another version: it can be neither used nor continued


def _time(found: Found) -> int:
    return (found.directory / (MANIFEST if found.manifest else PLAN)).stat().st_mtime_ns


def newest(home: Path) -> Path:
    """Return the newest finished set. Raises RequestError when there is none."""
    found = generated_sets(home)
    if not found:
        raise RequestError(f"no data set has been generated in {data_folder(home)}", remedy=MAKE_ONE)
    if found[0].manifest is None:
        raise unfinished(found[0].directory, found[0].plan)
    return found[0].directory


def finished(directory: Path) -> Manifest:
    """Return the manifest of a set that is whole by its sizes. Raises RequestError for any other directory."""
    manifest, plan = read_manifest(directory), read_plan(directory)
    if manifest is None and plan:
        raise unfinished(directory, plan)
    if manifest is None:
        raise RequestError(
            f"{directory} is no generated data set", remedy=f"{MAKE_ONE}, or name your own as imagefolder:{directory}"
        )
    if not is_unchanged(directory, manifest):
        raise RequestError(
            f"{directory} has changed since it was made",
            remedy=f"bench data verify {directory} says how; {continuing(directory, manifest)} mends it",
        )
    return manifest


def unfinished(directory: Path, plan: SetPlan) -> RequestError:
    return RequestError(
        f"the making of {directory} was interrupted", remedy=f"{continuing(directory, plan)} continues it"
    )


def continuing(directory: Path, plan: SetPlan) -> str:
    """Return the command that makes this very set."""
    changed = [f"--{name} {value}" for name, value in _other_than_default(plan)]
    return " ".join(["bench data make --images", str(plan.images), *changed, "--out", str(directory)])


def _other_than_default(plan: SetPlan) -> list[tuple[str, object]]:
    usual = (("size", plan.size, "imagenet"), ("seed", plan.seed, 0), ("classes", plan.classes, 1000))
    return [(name, value) for name, value, default in usual if value != default]
