"""The shell steps of docs/guide/ci.md, run as written, by the shell and with the settings of each service."""

import os
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from analysis.load.records import load
from analysis.warnings.conditions import least_elapsed
from tests.integration.bench import BENCH, REPOSITORY
from tests.integration.machine import require

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

PAGE = (REPOSITORY / "docs/guide/ci.md").read_text()
TRAINING = "import time\n\nfor step in range(10):\n    time.sleep({seconds})\n"
EXCLUDED = 1.2
"""Above this, six blocks exclude that the branch is as fast as before."""


def steps(service: str) -> list[str]:
    """Return the shell steps of the block of a service, in their order."""
    block = re.findall(rf"^## {service}\n.*?```yaml\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)[0]
    pattern = r"^\s+(?:- )?run: (.*)$" if service == "GitHub Actions" else r"^    - (.*)$"
    return re.findall(pattern, block, re.MULTILINE)


def pipeline(service: str, home: Path, branch: str, number: int, *, is_request: bool) -> int:
    """Run the steps for a branch; return the exit code of the first that fails, else 0."""
    variables = {
        "GITHUB_REF_NAME": branch,
        "GITHUB_RUN_ID": str(number),
        "GITHUB_STEP_SUMMARY": str(home / "summary.md"),
        "CI_COMMIT_REF_SLUG": branch.replace("/", "-"),
        "CI_PIPELINE_ID": str(number),
        "HOME": str(home),
        "PATH": f"{Path(BENCH).parent}{os.pathsep}{os.environ['PATH']}",
    }
    # The condition of the second step on GitHub, which is no shell.
    shell_steps = steps(service) if is_request or service == "GitLab" else steps(service)[:1]
    for step in shell_steps:
        argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step]
        ended = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=home, env=os.environ | variables)
        if ended.returncode:
            assert "Traceback" not in ended.stderr, ended.stderr
            return ended.returncode
    return 0


def trials_of(home: Path, run: str) -> pd.DataFrame:
    return load([home / "speed" / run]).trials


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("service", ["GitHub Actions", "GitLab"])
def test_a_branch_passes_and_one_that_trains_twice_as_long_fails(service: str, tmp_path: Path) -> None:
    require("target", "bare-metal")
    assert len(steps(service)) == 2
    script = tmp_path / "train.py"
    script.write_text(TRAINING.format(seconds=0.1))
    assert pipeline(service, tmp_path, "main", 1, is_request=False) == 0
    assert pipeline(service, tmp_path, "12/merge", 2, is_request=True) in (0, 4)
    script.write_text(TRAINING.format(seconds=0.2))
    outcome = pipeline(service, tmp_path, "13/merge", 3, is_request=True)
    (suite,) = ElementTree.parse(tmp_path / "speed.xml").getroot()  # noqa: S314 (just written)
    failures = int(suite.get("failures", ""))
    branch = "13/merge/3" if service == "GitHub Actions" else "13-merge/3"
    before_s = trials_of(tmp_path, "main/1")["elapsed_s"].mean()
    # What other work on this machine may have delayed, nobody can tell from what the branch does.
    if least_elapsed(trials_of(tmp_path, branch)).min() > EXCLUDED * before_s:
        assert (outcome, bool(failures)) == (3, True), ElementTree.tostring(suite)
        word = "slower (exit code 3)"
    else:
        assert outcome == (0 if service == "GitHub Actions" else 4)
        word = "cannot tell (exit code 4)"
    if service == "GitHub Actions":
        summary = (tmp_path / "summary.md").read_text()
        assert summary.count("### ") == 2
        assert f"### {word}: " in summary
