"""The shell steps of docs/guide/ci.md, run as written, by the shell and with the settings of each service."""

import os
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from analysis.warnings.conditions import DISTURBANCES, OTHER_LOAD
from tests.integration.bench import BENCH, REPOSITORY
from tests.integration.machine import require

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

PAGE = (REPOSITORY / "docs/guide/ci.md").read_text()
TRAINING = "import time\n\nfor step in range(10):\n    time.sleep({seconds})\n"


DISTURBED = [kind.finding for kind in DISTURBANCES if kind.kind in (OTHER_LOAD, "steal-time")]


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


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("service", ["GitHub Actions", "GitLab"])
def test_a_branch_passes_and_one_that_trains_four_times_as_long_fails(service: str, tmp_path: Path) -> None:
    require("target", "bare-metal")
    assert len(steps(service)) == 2
    script = tmp_path / "train.py"
    script.write_text(TRAINING.format(seconds=0.1))
    assert pipeline(service, tmp_path, "main", 1, is_request=False) == 0
    assert pipeline(service, tmp_path, "12/merge", 2, is_request=True) in (0, 4)
    script.write_text(TRAINING.format(seconds=0.4))
    outcome = pipeline(service, tmp_path, "13/merge", 3, is_request=True)
    (suite,) = ElementTree.parse(tmp_path / "speed.xml").getroot()  # noqa: S314 (just written)
    failures = int(suite.get("failures", ""))
    skipped = [element.text or "" for element in suite.iter("skipped")]
    # Beside other work nothing is told, however large the difference is: GitHub's step accepts that.
    disturbed = [why for why in skipped if any(finding in why for finding in DISTURBED)]
    if disturbed and not failures:
        assert outcome == (0 if service == "GitHub Actions" else 4)
        word = "cannot tell (exit code 4)"
    else:
        assert (outcome, bool(failures)) == (3, True), skipped
        word = "slower (exit code 3)"
    if service == "GitHub Actions":
        summary = (tmp_path / "summary.md").read_text()
        assert summary.count("### ") == 2
        assert f"### {word}: " in summary
