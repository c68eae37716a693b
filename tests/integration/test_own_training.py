"""The examples of docs/guide/own-training.md, from its own text, as a new user runs them."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.test_worker import OWN_TRAINING, example
from tests.integration.machine import require_fast_guests, require_root_and_image
from tests.integration.test_run import BENCH

pytestmark = pytest.mark.integration

WAYS = {"A workload in a file": "my_model.py", "A command": "mine/train.py"}
"""The sections, and the file that each says to save."""


@pytest.mark.parametrize("targets", [("bare-metal", "container"), ("vm",), ("container-vm",)], ids="+".join)
@pytest.mark.parametrize("heading", WAYS)
def test_the_example_runs_as_it_is_documented(heading: str, targets: tuple[str, ...], tmp_path: Path) -> None:
    require_root_and_image()
    if "container" not in targets:
        require_fast_guests()
    section = OWN_TRAINING.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (tmp_path / "mine").mkdir()
    (tmp_path / WAYS[heading]).write_text(example(heading, OWN_TRAINING))
    (documented,) = re.findall(r"^    bench (run .* --target all .*)$", section, re.MULTILINE)
    words = shlex.split(documented.replace("--target all", " ".join(f"--target {name}" for name in targets)))
    done = subprocess.run(
        [BENCH, *words, "--out", "out"], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr
    records: list[dict[str, Any]] = [json.loads(path.read_text()) for path in (tmp_path / "out/trials").iterdir()]
    assert {record["target"] for record in records} == set(targets)
    for record in records:
        assert record["outcome"]["status"] == "ok"
        assert record["job"]["model"] == Path(WAYS[heading]).name
        assert not record["environment"]["target"]["userland_differences"]
    if heading == "A command":
        assert {record["details"]["steps"] for record in records} == {40}
