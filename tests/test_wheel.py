"""What is installed is what was written: the wheel holds the whole suite, and declares what it needs."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from provisioning.images.build import recipe_sha256
from suite.sweep.file import shipped_plans
from suite.version import code_digest
from tests.built_wheel import REPOSITORY, build_wheel
from tests.test_rooms import roots, tree

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
ROOMS = [
    path.parent for path in REPOSITORY.glob("*/__init__.py") if path.parent.name != "tests" and path.parent.is_dir()
]
"""Every top-level package; a new one must be packed too."""
LINKED = {"provisioning/images/recipe": "docker", "suite/sweep/plans": "plans"}
"""What is no Python, stands at the top of the checkout, and travels inside a package."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("wheel"))) as archive:
        archive.extractall(place)
    return place


def files_below(directory: Path) -> Iterator[str]:
    for place, folders, names in os.walk(directory):
        folders[:] = [folder for folder in folders if folder != "__pycache__"]
        yield from ((Path(place) / name).relative_to(directory).as_posix() for name in names)


def test_the_wheel_holds_every_file_of_the_rooms_and_nothing_else(unpacked: Path) -> None:
    expected = {"cli.py", *(f"{room.name}/{name}" for room in ROOMS for name in files_below(room))}
    expected |= {f"{inside}/{name}" for inside, top in LINKED.items() for name in files_below(REPOSITORY / top)}
    assert {name for name in files_below(unpacked) if ".dist-info/" not in name} == expected
    for inside, top in LINKED.items():
        assert (REPOSITORY / inside).resolve() == (REPOSITORY / top).resolve()


def test_a_wheel_has_the_recipe_and_the_plans_of_its_checkout(unpacked: Path, tmp_path: Path) -> None:
    program = (
        "from provisioning.images.build import recipe_sha256; from suite.sweep.file import shipped_plans\n"
        "print(recipe_sha256('cpu'), recipe_sha256('cuda'), *shipped_plans())"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
    )
    assert done.stdout.split() == [recipe_sha256("cpu"), recipe_sha256("cuda"), *shipped_plans()], done.stderr
    assert done.stderr == ""


def test_a_wheel_and_its_checkout_have_one_version(unpacked: Path) -> None:
    assert code_digest(unpacked) == code_digest(REPOSITORY)


def third_party(*rooms: Path) -> set[str]:
    """The distributions that these rooms import from, without the standard library."""
    own = {"cli", *(room.name for room in ROOMS)}
    files = (path for room in rooms for path in (room.rglob("*.py") if room.is_dir() else (room,)))
    found = {root for path in files for root in roots(tree(str(path.relative_to(REPOSITORY))))}
    distributions = packages_distributions()
    return {distributions[module][0].lower() for module in found - own - set(sys.stdlib_module_names)}


def test_every_import_is_declared_and_every_declaration_is_used() -> None:
    worker = REPOSITORY / "worker"
    imported = third_party(REPOSITORY / "cli.py", *(room for room in ROOMS if room != worker))
    ran = third_party(worker)
    in_image = set(re.findall(r"^([a-z0-9_-]+)==", (REPOSITORY / "docker/requirements.txt").read_text(), re.MULTILINE))
    extras = PROJECT["project"]["optional-dependencies"]
    declared, optional = (
        {re.split("[=>]", requirement)[0] for requirement in requirements}
        for requirements in (PROJECT["project"]["dependencies"], extras["web"] + extras["parquet"])
    )
    # pip is run as a program; torchvision is imported by a function that mends what a build of it lacks.
    assert declared - imported - ran == {"pip", "torchvision"}
    # The pages are served by the server of the image's service.
    assert optional <= imported | ran
    assert imported <= declared | optional
    assert ran <= in_image


def test_what_is_declared_is_what_the_constraints_pin() -> None:
    constraints = {line.lower() for line in (REPOSITORY / "constraints.txt").read_text().splitlines()}
    project = PROJECT["project"]
    requirements = project["dependencies"] + project["optional-dependencies"]["dev"]
    # Which build of torch it is depends on the index; pip takes the nearest to its exact version here.
    free = {"pip>=22.3", *(each for each in requirements if each.startswith(("torch==", "torchvision==")))}
    assert set(requirements) - constraints == free
    assert set(PROJECT["build-system"]["requires"]) <= constraints
