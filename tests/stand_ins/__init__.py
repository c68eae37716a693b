"""NVIDIA's driver, played: libraries made from C, found as the real ones are, and device files that are /dev/zero."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
VERSION = "580.159.04"
UUIDS = {"0": "GPU-000000a0", "1": "GPU-000000a1", "3:0": "MIG-000000b0", "3:1": "MIG-000000b1"}
"""The beginnings of the UUIDs of the GPUs that can be used."""


def build(source: Path, library: Path, soname: str) -> None:
    options = ["-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(library)]
    subprocess.run([shutil.which("gcc") or "gcc", *options, str(source)], check=True)


def driver(place: Path) -> Path:
    """Make the driver's libraries, with the links that its installer makes, in a directory."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    place.mkdir()
    version = "int cuDriverGetVersion(int *version) { *version = 13000; return 0; }"
    (place / "cuda.c").write_text(f"int cuInit(unsigned flags) {{ return (int)flags; }}\n{version}\n")
    for name, source in {"libcuda": place / "cuda.c", "libnvidia-ml": HERE / "nvml.c"}.items():
        library = place / f"{name}.so.{VERSION}"
        build(source, library, f"{name}.so.1")
        (place / f"{name}.so.1").symlink_to(library.name)
    return place


def with_driver(libraries: Path, *argv: str, **variables: str) -> str:
    """Return what Python prints that finds these libraries."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), **variables}
    ended = subprocess.run([sys.executable, *argv], check=False, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
