"""The Makefile: what the quickstart says first and last, and what it hides."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

from suite.job.profiles import PROFILES
from suite.job.sharing import sizes_of
from suite.registries import WORKLOADS
from worker.workloads.workload import Shape

REPOSITORY = Path(__file__).parents[1]


def make(*words: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    # Not as a part of the make that runs the tests.
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(["make", *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_the_quickstart_says_first_what_it_takes_measures_the_lightest_network_and_ends_with_the_page() -> None:
    lines = make("--dry-run", "quickstart").stdout.splitlines()
    assert "minutes" in lines[0]
    assert "GB of disk" in lines[0]
    page, decides, command, end = [line.removesuffix(" && \\") for line in lines[-4:]]
    assert (page, end) == (".venv/bin/bench report", "exit $status")
    assert "This decides whether a container is slower here" in decides
    assert command == 'echo ".venv/bin/bench run"', "alone on its line, to be pasted"
    (run,) = (line for line in lines if "bench run --" in line)
    assert "> /dev/null" in run, "its answer is the first sentence of the comparison"
    assert lines.index(run) < lines.index(next(line for line in lines if "bench compare" in line))
    # With an emulated CPU beside other work, ResNet-50 takes more than ten minutes.
    weights = {}
    for name in WORKLOADS.own:
        sizes = sizes_of(PROFILES["smoke"], name, {})
        if WORKLOADS.get(name).has_images:
            with torch.device("meta"):
                network = WORKLOADS.get(name).build(Shape(sizes.image_px or 0, sizes.channels or 3))
            weights[name] = sum(weight.numel() for weight in network.parameters())
    assert f"--model {min(weights, key=weights.__getitem__)} " in run


@pytest.mark.parametrize(
    ("status", "ran"),
    [(0, ["image", "run", "compare", "report"]), (1, ["image", "run", "compare", "report"]), (2, ["image", "run"])],
)
def test_a_failed_trial_leaves_the_comparison_and_the_page_and_its_exit_code(
    tmp_path: Path, status: int, ran: list[str]
) -> None:
    (bench := tmp_path / "bench").write_text(
        f'#!/bin/sh\necho "$1" >> {tmp_path}/ran\ncase "$1" in run) exit {status};; esac\n'
    )
    bench.chmod(0o755)
    done = make("--old-file=setup", f"BENCH={bench}", "quickstart")
    assert (tmp_path / "ran").read_text().split() == ran
    assert bool(done.returncode) == bool(status), done.stderr


def test_the_output_of_an_installation_is_shown_only_if_it_fails(tmp_path: Path) -> None:
    quietly = next(line for line in (REPOSITORY / "Makefile").read_text().splitlines() if line.startswith("QUIETLY"))
    recipes = "good:\n\t@$(QUIETLY) echo many && quietly echo lines\nbad:\n\t@$(QUIETLY) sh -c 'echo why; exit 3'\n"
    (tmp_path / "Makefile").write_text(f"VENV := kept\n{quietly}\n{recipes}")
    assert make("good", cwd=tmp_path).stdout == ""
    failed = make("bad", cwd=tmp_path)
    assert failed.returncode != 0
    assert failed.stderr.startswith("why\n")
