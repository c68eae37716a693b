"""Generative workloads on bare metal and in a container: their phases and losses come back, and the records hold."""

from pathlib import Path

import pytest

from suite.registries import WORKLOADS
from tests.integration.machine import require_image, require_root
from tests.integration.test_run import RUNC, SMALL, bench
from tests.integration.test_run import records as of_run

pytestmark = pytest.mark.integration
GENERATIVE = ("gan", "gan-published", "dcgan", "dcgan-published", "vae", "progressive-gan")


@pytest.mark.parametrize("model", GENERATIVE)
def test_a_generative_workload_runs_on_bare_metal_and_in_a_container(model: str, tmp_path: Path) -> None:
    require_root()
    require_image()
    words = ("--model", model, "--blocks", "1", "--target", "bare-metal", "--target", "container", *RUNC)
    done = bench("run", *words, *SMALL, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    workload, found = WORKLOADS.get(model), of_run(tmp_path / "run")
    assert set(found) == {"bare-metal", "container"}
    for record in found.values():
        assert record.job.unit == "images"
        assert record.steps
        assert tuple(record.steps.phases) == workload.phases
        assert tuple(record.steps.losses) == workload.losses
    audited = bench("audit", str(tmp_path / "run"))
    assert audited.returncode == 0, audited.stdout
