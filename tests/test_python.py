"""virtbench from Python, as docs/guide/python.md shows it: the page is run, cell by cell, on fakes of targets."""

import os
import re
import subprocess
import sys
import textwrap
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import virtbench
from suite.errors import RequestError
from tests.commands.conftest import Machine, answer_for, go_to, unaudited
from tests.suite.conftest import measuring_by

__all__ = ["unaudited"]

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs/guide/python.md"
CELLS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return go_to(tmp_path, monkeypatch)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = answer_for(Machine(), monkeypatch)
    measuring_by(made.scenario, monkeypatch)
    return made


@pytest.mark.usefixtures("machine", "unaudited")
def test_the_cells_of_the_page_run_one_after_the_other(here: Path) -> None:
    assert len(CELLS) >= 4
    cells: dict[str, Any] = {}
    for cell in CELLS:
        exec(compile(cell, str(PAGE), "exec"), cells)  # noqa: S102 (the page is this repository's)
    trials = cells["trials"]
    assert set(trials["target"]) == {"bare-metal", "container"}
    assert len(trials[~trials["warm_up"]]) == 10
    assert list(cells["result"].contrasts["kind"].unique())
    assert [path.name for path in (here / "results").iterdir()] == [cells["result"].directories[0].name]


class Tags(HTMLParser):
    """The tags of a text, which must be closed in the order in which they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, _attributes: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.usefixtures("machine", "unaudited")
def test_a_notebook_shows_an_answer_as_html_and_print_shows_its_text() -> None:
    result = virtbench.run(target=["bare-metal", "container"], blocks=5, memory="1M", cpus=1)
    html = Tags()
    html.feed(result._repr_html_())
    assert html.open == []
    assert "table" in html.seen
    assert not {"html", "body", "script"} & html.seen
    lines = str(result).splitlines()
    assert lines[0].startswith("container")
    assert lines == [line.rstrip() for line in lines]
    assert (result.next or "") in str(result), "it can be pasted"


@pytest.mark.usefixtures("machine")
def test_a_wrong_request_and_an_empty_directory_are_refused_with_the_remedy(here: Path) -> None:
    with pytest.raises(RequestError, match="'vn' is unknown") as caught:
        virtbench.run(target="vn")
    assert caught.value.__notes__ == ["what to do: choose among bare-metal, container, vm, container-vm, all"]
    with pytest.raises(RequestError, match="no option tarjet"):
        virtbench.run(tarjet="vm")
    with pytest.raises(RequestError, match="no run in results/"):
        virtbench.compare()
    assert not (here / "results").exists()


def python(here: Path, program: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in a directory that stands first on the path, as with a notebook there; the suite comes last."""
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{REPOSITORY}"}
    argv = [sys.executable, *options, "-c", textwrap.dedent(program)]
    return subprocess.run(argv, check=False, capture_output=True, text=True, cwd=here, env=environment)


def test_a_module_of_the_user_with_the_name_of_a_package_is_named_with_the_remedy(here: Path) -> None:
    (here / "worker.py").write_text("MINE = True")
    hidden = python(
        here, "import virtbench\nvirtbench.read\nvirtbench.run\nvirtbench.read\nimport worker; print(worker.__file__)"
    )
    assert hidden.returncode == 0, hidden.stderr
    assert str(REPOSITORY) in hidden.stdout
    assert hidden.stderr.count(f"not {here / 'worker.py'}; what to do: rename your module") == 1
    first = python(here, "import worker, virtbench; assert worker.MINE; virtbench.read")
    assert first.returncode == 1
    assert "virtbench has a package called worker, and" in first.stderr
    assert "python -m virtbench" in first.stderr


def test_importing_virtbench_imports_none_of_its_packages_and_warns_of_nothing(here: Path) -> None:
    program = """
        import sys, virtbench
        print({"suite", "worker", "cli", "pandas"} & sys.modules.keys())
    """
    ended = python(here, program, "-W", "error")
    assert (ended.stdout, ended.stderr) == ("set()\n", "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert virtbench.compare.__module__ == "virtbench.calls"
    with pytest.raises(AttributeError, match="no attribute 'measure'"):
        _ = virtbench.measure
