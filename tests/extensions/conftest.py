"""A package outside the tree that adds members to the registries: each is one file, found by an entry point."""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BENCH = "from provisioning import neighbours; neighbours.NAME += '-of-extensions'; import cli; cli.main()"
"""These runs are among themselves: the tests of real targets, which run at the same time, are not refused by them."""


@dataclass
class Package:
    """The package, and ``bench`` as a process of its own that finds it as an installed one."""

    place: Path
    entry_points: dict[str, list[str]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The value of PYTHONPATH with which it is found."""
        return f"{self.place}{os.pathsep}{REPOSITORY}"

    def add(self, group: str, name: str, source: str, member: str = "MEMBER") -> str:
        """Add a member in a file of its own, in which it is called ``member``; return the file's digest."""
        module = f"toy_{name.replace('-', '_')}"
        (self.place / f"{module}.py").write_text(source)
        self.entry_points.setdefault(group, []).append(f"{name} = {module}:{member}")
        text = "\n".join(line for key, lines in self.entry_points.items() for line in (f"[{key}]", *lines))
        (self.place / "toys-1.0.dist-info/entry_points.txt").write_text(text)
        return hashlib.sha256(source.encode()).hexdigest()

    def bench(self, *words: str, program: str | None = None) -> "subprocess.CompletedProcess[str]":
        home = {"VIRTBENCH_HOME": str(self.place / "home"), "XDG_RUNTIME_DIR": str(self.place)}
        begun = ["-m", program] if program else ["-c", BENCH]
        argv, env = [sys.executable, *begun, *words], {**os.environ, **home, "PYTHONPATH": self.path}
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=300, cwd=self.place, env=env)


@pytest.fixture
def package(tmp_path: Path) -> Package:
    info = tmp_path / "toys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    return Package(tmp_path)
