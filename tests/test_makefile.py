"""The Makefile: what the quickstart says first and last, and what it hides."""

import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def make(*words: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    # Not as a part of the make that runs the tests.
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(["make", *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_the_quickstart_says_first_how_long_it_takes_and_how_much_disk_and_ends_with_the_page() -> None:
    lines = make("--dry-run", "quickstart").stdout.splitlines()
    assert "minutes" in lines[0]
    assert "GB of disk" in lines[0]
    assert lines[-1].endswith("bench report")
    (run,) = (line for line in lines if "bench run" in line)
    assert "> /dev/null" in run, "its answer is the first sentence of the comparison"
    assert lines.index(run) < lines.index(next(line for line in lines if line.endswith("bench compare")))


def test_the_output_of_an_installation_is_shown_only_if_it_fails(tmp_path: Path) -> None:
    quietly = next(line for line in (REPOSITORY / "Makefile").read_text().splitlines() if line.startswith("QUIETLY"))
    recipes = "good:\n\t@$(QUIETLY) echo many && quietly echo lines\nbad:\n\t@$(QUIETLY) sh -c 'echo why; exit 3'\n"
    (tmp_path / "Makefile").write_text(f"VENV := kept\n{quietly}\n{recipes}")
    assert make("good", cwd=tmp_path).stdout == ""
    failed = make("bad", cwd=tmp_path)
    assert failed.returncode != 0
    assert failed.stderr.startswith("why\n")
