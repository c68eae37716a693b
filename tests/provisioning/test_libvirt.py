"""The domain that libvirt is given, and what is refused before it is asked."""

from typing import cast

import pytest

from provisioning import ledger
from provisioning.hindrances import refuse_ablation
from provisioning.images.image import Image
from provisioning.machines.libvirt import LIBVIRT, URI_VARIABLE, uri, virsh
from provisioning.sites.here import Here
from provisioning.targets import Choices
from scenarios.synthetic import Synthetic
from suite.errors import RequestError
from suite.job.ablations import properties_of

NAME = "virtbench-vm-0123456789ab"


@pytest.mark.parametrize(
    "given", ["qemu:///session", "qemu+ssh://other/system", "test:///default", "qemu:///system?x=1"]
)
def test_a_connection_that_leads_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(URI_VARIABLE, given)
    with pytest.raises(RequestError, match="is no connection to the system daemon of this machine"):
        uri()


@pytest.mark.parametrize("given", ["qemu:///system", "qemu+unix:///system?socket=/var/tmp/vb-1/libvirt-sock"])
def test_a_connection_to_a_daemon_of_this_machine_is_taken(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(URI_VARIABLE, given)
    assert virsh()[-1] == given


@pytest.mark.parametrize(
    "what",
    [
        "libvirt:other@qemu:///system",
        f"libvirt:{NAME}@qemu+ssh://other/system",
        f"libvirt:{NAME}@qemu:///system --all",
    ],
)
def test_an_entry_of_the_ledger_that_names_anything_else_is_left_alone(what: str) -> None:
    with pytest.raises((ledger.LedgerError, RequestError)), ledger.holding("machine", what):
        pass


def test_what_libvirt_cannot_do_is_refused_with_the_reason() -> None:
    image = cast("Image", None)
    assert "no machine type microvm" in str(LIBVIRT.hindrance(properties_of("microvm"), image))
    with pytest.raises(RequestError, match="network namespace"):
        LIBVIRT.check_lab()
    with pytest.raises(RequestError, match="--ablate libvirt: it is the machine provider of the run already"):
        refuse_ablation("libvirt", Here(Choices(image, "runc", "tcg", provider="libvirt")), "reference", Synthetic())
