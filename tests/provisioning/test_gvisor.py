"""gVisor as an engine: the platform, what it refuses, and how its containers are removed."""

from collections.abc import Callable
from typing import Any

import pytest

from provisioning.engines.base import default_engine, get_engine
from provisioning.engines.gvisor import GVISOR, Gvisor
from suite.errors import BenchError, RequestError
from suite.interfaces import Completed
from suite.job.ablations import properties_of
from tests.rendered import CONTAINER

OLD = "  -platform string\n    \tspecifies which platform to use: ptrace (default), kvm.\n"
NEW = "  -platform string\n    \tspecifies which platform to use: systrap (default), ptrace, kvm.\n"
FakeNodes = Callable[..., Any]


def runsc(flags: str, **more: Completed) -> dict[tuple[str, ...], Completed]:
    said = {
        ("runsc", "--version"): Completed(0, "runsc version 0.0~2022\nspec: 1.0\n", ""),
        ("runsc", "flags"): Completed(0, "", flags),
        ("id",): Completed(0, "0", ""),
    }
    probe = tuple(GVISOR.command("--platform", "kvm", "--network", "none", "do", "true"))
    return said | ({probe: more["probe"]} if more else {})


@pytest.mark.parametrize(("flags", "platform"), [(OLD, "ptrace"), (NEW, "systrap")])
def test_systrap_is_preferred_where_runsc_has_it(fake_node: FakeNodes, flags: str, platform: str) -> None:
    node = fake_node(runsc(flags))
    assert GVISOR.platform(node) == platform
    assert GVISOR.starting(node, CONTAINER)[3:] == ["--platform", platform, "--network", "none", "run"]


def test_a_platform_is_what_the_user_chose_or_refused(fake_node: FakeNodes) -> None:
    chosen = GVISOR.configured({"gvisor_platform": "systrap"})
    assert chosen.platform(fake_node(runsc(NEW))) == "systrap"
    with pytest.raises(BenchError, match="runsc on fake has no platform systrap"):
        chosen.version(fake_node(runsc(OLD)))
    with pytest.raises(BenchError, match="has no platform"):
        GVISOR.platform(fake_node(runsc("nothing")))


def test_kvm_is_used_only_if_a_container_starts_on_it(fake_node: FakeNodes) -> None:
    kvm = GVISOR.configured({"gvisor_platform": "kvm"})
    assert kvm.version(fake_node(runsc(NEW, probe=Completed(0, "", "")))) == "0.0~2022"
    with pytest.raises(BenchError, match="does not start on platform kvm on fake"):
        kvm.version(fake_node(runsc(NEW, probe=Completed(128, "", "cannot create vCPU"))))


def test_runsc_that_is_missing_is_named(fake_node: FakeNodes) -> None:
    with pytest.raises(BenchError, match="gvisor does not work on fake: not found") as caught:
        GVISOR.version(fake_node({("runsc", "--version"): Completed(127, "", "not found")}))
    assert "package runsc" in str(caught.value.remedy)


def test_it_is_used_only_by_name_and_is_not_in_guests() -> None:
    assert default_engine(["gvisor"]) == "runc"
    assert default_engine(["gvisor", "podman"]) == "podman"
    assert not get_engine("gvisor").in_guests


def test_a_property_that_the_sentry_does_not_have_is_not_switched_and_those_of_its_control_group_are() -> None:
    for ablation in ("seccomp", "huge-pages", "disk-limit", "disk-iops", "data-layer"):
        assert "gVisor cannot switch" in str(GVISOR.hindrance(properties_of(ablation)))
    for ablation in ("memory-limit", "pinning", "network"):
        assert GVISOR.hindrance(properties_of(ablation)) is None


@pytest.mark.parametrize(("network", "in_lab"), [("host", True), ("overlay", True), ("overlay", False)])
def test_networks_that_come_after_the_start_are_refused(network: str, in_lab: bool) -> None:
    with pytest.raises(RequestError, match=f"--network {network}: gvisor"):
        GVISOR.check_network(network, in_lab=in_lab)
    GVISOR.check_network("host", in_lab=False)


def test_an_engine_of_another_package_may_inherit_from_it(fake_node: FakeNodes) -> None:
    class Own(Gvisor):
        name = "own"

    assert Own().configured({"gvisor_platform": "ptrace"}).platform(fake_node(runsc(OLD))) == "ptrace"
    assert Own().configured({}).name == "own"
