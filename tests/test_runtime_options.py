"""Engines and OCI runtimes that the image of the guests lacks, and runtimes that no engine has."""

import pytest

from commands.run.resolve import carried
from provisioning.doctor import Check
from suite.errors import RequestError
from suite.request.request import RunRequest
from suite.targets import TARGETS

CHECKS = [Check(kind="target", name=name, usable=True, evidence="fake") for name in TARGETS]


def test_an_engine_that_guests_lack_runs_containers_here_alone() -> None:
    request = RunRequest.of({"engine": "gvisor"})
    notes: list[str] = []
    assert carried(request, CHECKS, notes.append) == ("bare-metal", "container", "vm")
    assert "container-vm is left out: the image of the guests has no gvisor" in notes[0]
    with pytest.raises(RequestError, match="cannot carry container-vm: the image of the guests has no gvisor"):
        carried(request.changed(target=("container", "container-vm")), CHECKS, print)
