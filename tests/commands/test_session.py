"""What is found and planned does not depend on the session: its file mode mask, language, home, limits, environment."""

import json
import os
import re
import resource
import subprocess
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from provisioning import artefacts
from provisioning.images.build import workplace
from provisioning.paths import ROOMS
from tests.commands.conftest import SMALL, Bench, Machine, ended_well

Settings = Mapping[str, str | None]
SESSIONS: dict[str, tuple[int, int, Settings]] = {
    "a mask that hides all from others": (0o077, 4096, {}),
    "another language": (0o022, 4096, {"LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "de", "LANG": "xx"}),
    "no language": (0o022, 4096, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "nobody's home": (0o022, 4096, dict.fromkeys(("HOME", "USER", "LOGNAME"))),
    "a temporary directory that is gone": (0o022, 4096, {"TMPDIR": "/nowhere"}),
    "few open files": (0o022, 64, {}),
}
FREE = re.compile(r"[\d.]+ Gi?B free|a boot sector, [\d.]+ s")
"""Space that changes from one moment to the next."""
TOGETHER = (
    ("a mask that hides all from others", "another language", "nobody's home", "few open files"),
    ("no language", "a temporary directory that is gone"),
)
"""The same, of which each process of the doctor can have several at once: it takes seconds."""


@contextmanager
def session(patch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    masks, limits, variables = zip(*(SESSIONS[name] for name in names), strict=True)
    mask, most_files, settings = max(masks), min(limits), ChainMap(*map(dict, variables))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = os.umask(mask)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most_files, hard), hard))
        for variable, value in settings.items():
            patch.delenv(variable, raising=False) if value is None else patch.setenv(variable, value)
        yield
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def examined() -> list[dict[str, Any]]:
    argv = [sys.executable, str(ROOMS / "cli.py"), "doctor", "--json"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")
    assert "Traceback" not in ended.stderr, ended.stderr
    checks: list[dict[str, Any]] = json.loads(ended.stdout)["checks"]
    return [{**check, "evidence": FREE.sub("", check["evidence"])} for check in checks]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """A home, in which the answer of KVM is kept, and the checks of the usual session."""
    home = str(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIRTBENCH_HOME", home)
        return home, examined()


@pytest.mark.parametrize("names", TOGETHER, ids=" and ".join)
def test_the_doctor_finds_the_same_in_every_session(
    names: tuple[str, ...], usual: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, checks = usual
    monkeypatch.setenv("VIRTBENCH_HOME", home)
    with session(monkeypatch, *names):
        assert examined() == checks


@pytest.mark.parametrize("name", SESSIONS)
def test_a_plan_is_the_same_in_every_session(
    name: str, bench: Bench, machine: Machine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", *SMALL, "--target", "bare-metal", "--target", "container", "--dry-run")
    usual = ended_well(bench(*words))
    with session(monkeypatch, name):
        found = ended_well(bench(*words))
    assert FREE.sub("", found.stdout) == FREE.sub("", usual.stdout)
    assert machine.events == []
    assert not (here / "out").exists()


@pytest.mark.parametrize("name", SESSIONS)
def test_jobs_may_read_the_images_that_any_session_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with session(monkeypatch, name), artefacts.making("an image", print), workplace(0) as (node, building):
        node.run(["mkdir", f"{building}/tree/etc"])
        (building / "tree/etc/hosts").write_text("127.0.0.1 localhost\n")
        modes = [(building / path).stat().st_mode & 0o777 for path in ("tree", "tree/etc", "tree/etc/hosts")]
        assert modes == [0o755, 0o755, 0o644], "a job on bare metal is another user"
