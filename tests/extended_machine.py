"""``bench`` with real scenarios and workers, on targets that are all this machine with the tests' own interpreter.

    python -m tests.extended_machine run --target bare-metal ...

A program of its own, so that what PYTHONPATH adds to the registries is found as an installed package is. The workers
are not given that path: what they run of it was sent to them. The home of the suite is VIRTBENCH_HOME.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import cli
from suite.interfaces import Instance
from suite.plan import Trial
from tests.scenarios.conftest import HereNode
from tests.suite.conftest import FakeAccount
from tests.suite.sweeping_machine import furnish


@contextmanager
def opened(trial: Trial) -> Iterator[Sequence[Instance]]:
    """Open the target: this machine, which is not held to the envelope, and says what its job expects of it."""
    dataset, engine = trial.job.dataset, {"name": trial.job.layers.engine, "version": "1", "network": "none"}
    node = HereNode(
        name=trial.target,
        data=dataset.directory if dataset else os.environ["VIRTBENCH_HOME"],
        facts={"container_engine": {**engine, "rootfs": "overlay"}} if trial.target == "container" else {},
        forks=False,
    )
    with closing(node):
        yield [Instance(node)] * max(1, len(trial.instances))


if __name__ == "__main__":
    patch = pytest.MonkeyPatch()
    furnish(patch, Path(os.environ["VIRTBENCH_HOME"]))
    patch.setattr("commands.run.prepare.Ready.open_target", staticmethod(opened))
    patch.setattr("provisioning.metrics.accounting.open_account", lambda *_, **__: FakeAccount(least_s=0.0))
    patch.setattr("suite.records.course.envelope_differences", lambda *_: [])
    cli.main(sys.argv[1:])
