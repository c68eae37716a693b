"""The suite as its users install it: from a wheel, in an environment of its own, called from another directory."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.images.build import built
from tests.built_wheel import build_wheel
from tests.integration.machine import require, require_image

pytestmark = pytest.mark.integration

Installed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, not a checkout, and the dependencies of this environment.

    torch is a gigabyte and is not installed twice: a .pth file adds the directory that holds it. What the .pth files
    *there* add, such as the finder of an editable installation, is not added with it.
    """
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    place = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True, env=clean_environment())
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return place


def clean_environment() -> dict[str, str]:
    """The environment of this process without what would lead Python to the checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


@pytest.fixture
def installed(environment: Path, tmp_path: Path) -> Installed:
    """Run a program of the environment in an empty directory; it must succeed."""

    def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [str(environment / "bin" / program), *words]
        done = subprocess.run(
            argv, cwd=tmp_path, env=clean_environment(), check=False, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done

    return run


def test_an_installed_bench_is_the_wheels_and_not_the_checkouts(installed: Installed, environment: Path) -> None:
    program = "import cli, suite, provisioning.paths as home; print(suite.__file__, cli.__file__, home.RECIPE)"
    found = installed("python", "-c", program).stdout.split()
    assert len(found) == 3
    assert all(Path(path).is_relative_to(environment) and Path(path).exists() for path in found)


def test_an_installed_bench_measures_and_compares_from_any_directory(installed: Installed, tmp_path: Path) -> None:
    require("target", "bare-metal")
    checks = json.loads(installed("bench", "doctor", "--json").stdout)["checks"]
    assert any(check["usable"] for check in checks if (check["kind"], check["name"]) == ("target", "bare-metal"))
    size = ("--profile", "smoke", "--blocks", "5", "--steps", "1", "--warmup-steps", "0")
    installed("bench", "run", "--target", "bare-metal", *size)
    found = [json.loads(record.read_text()) for record in (tmp_path / "results").glob("*/trials/*.json")]
    assert {record["outcome"]["status"] for record in found} == {"ok"}
    assert "bare-metal" in installed("bench", "compare").stdout
    report = tmp_path / "report.html"
    installed("bench", "report", "--html", str(report))
    assert "data:image/svg+xml" in report.read_text(), "figures are drawn"


def test_an_installed_bench_knows_the_image_that_its_checkout_built(installed: Installed) -> None:
    require_image()
    image = built("cpu")
    if image is None:
        pytest.skip("the recipe has changed since the image was built: bench image build")
    again = installed("bench", "image", "build")
    assert (again.stdout.strip(), again.stderr) == (image.digest, f"image {image.digest[:12]} is up to date\n")
