"""The positive control on the real machine: one injury of bare metal, two blocks."""

import json
from pathlib import Path

import pytest

from provisioning.paths import home
from suite.selftest.certificate import Certificate
from tests.integration.machine import require_root_and_image
from tests.integration.test_run import bench
from tests.integration.trials import records_in

pytestmark = [pytest.mark.integration, pytest.mark.thorough]


def test_held_memory_is_injected_clocked_and_found_on_bare_metal(tmp_path: Path) -> None:
    """Memory and not time: how much others compute meanwhile does not matter."""
    require_root_and_image()
    # A home of the test's own, with the image of this machine: the machine's own certificate stays.
    (tmp_path / "home").mkdir()
    (tmp_path / "home/images").symlink_to(home() / "images")
    words = ("--target", "bare-metal", "--injury", "held-memory", "--blocks", "2", "--out", str(tmp_path), "--json")
    result = bench("selftest", *words, env={"VIRTBENCH_HOME": str(tmp_path / "home")})
    certificate = Certificate.model_validate(json.loads(result.stdout))
    found = {one.injury: one for one in certificate.findings}["held-memory"]
    assert found.truth is not None
    assert found.truth[0] > 1.5
    assert found.ratio == pytest.approx(found.truth[0], rel=0.1)
    injured = [each for each in records_in(tmp_path / "synthetic") if each.ablation == "held-memory"]
    assert [record.details["injected"]["held_bytes"] for record in injured] == [512 << 20] * 2
