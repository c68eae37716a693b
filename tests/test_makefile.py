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


def test_a_lock_admits_the_listed_digests_alone_and_without_one_versions_decide() -> None:
    every = make("--dry-run", "--always-make", "setup").stdout
    locked = make("--dry-run", "--always-make", "setup", "LOCK=constraints.txt").stdout
    assert "-c constraints.txt -e '.[dev]'" in every
    assert "--require-hashes" not in every
    assert "install --require-hashes --force-reinstall --no-deps -r constraints.txt" in locked
    assert "install --no-index --no-deps --no-build-isolation -e ." in locked
    assert "-c constraints.txt" not in locked


AUDITS = {
    "none known": ("echo 'No known vulnerabilities found' >&2", True, "No known"),
    "some": ("echo 'Found 1 known vulnerability in 1 package' >&2; exit 1", False, "Found 1"),
    "out of reach": ("echo 'ERROR: Could not connect to the service' >&2; exit 1", False, "nothing was audited"),
    "a mirror that knows none": ("echo 'ERROR: not found, and could not be audited' >&2; exit 1", False, "nothing was"),
    "no answer": ("exit 0", False, "nothing was audited"),
}


@pytest.mark.parametrize(("program", "passes", "printed"), AUDITS.values(), ids=AUDITS)
def test_an_audit_passes_only_if_an_index_has_answered_that_nothing_is_known(
    tmp_path: Path, program: str, passes: bool, printed: str
) -> None:
    (audit := tmp_path / "pip-audit").write_text(f'#!/bin/sh\nfor last; do :; done; : > "$last"\n{program}\n')
    audit.chmod(0o755)
    done = make(f"PIP_AUDIT={audit}", f"VENV={tmp_path / 'venv'}", "audit")
    assert "--strict" in make("--dry-run", "audit").stdout, "without it, what is not known passes"
    assert (done.returncode == 0, printed in done.stdout) == (passes, True), done.stderr


def test_an_audit_without_its_program_is_refused_with_the_remedy() -> None:
    done = make("PIP_AUDIT=no-such-program", "audit")
    assert done.returncode != 0
    assert "make audit needs pip-audit: pipx install pip-audit" in done.stdout
