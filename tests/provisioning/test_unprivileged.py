"""Engines that need neither root nor a daemon: their arguments, what they refuse, and a container by a stand-in."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioning.engines import unprivileged
from provisioning.engines.apptainer import APPTAINER
from provisioning.engines.base import ContainerEngine, get_engine
from provisioning.engines.charliecloud import CHARLIECLOUD
from provisioning.layers.container import ContainerLayer
from provisioning.nodes import LocalNode
from suite.errors import BenchError, RequestError
from suite.interfaces import Completed, open_stack
from suite.job.ablations import properties_of
from suite.job.envelope import GIB
from suite.registries import ABLATIONS
from tests.extensions.conftest import REPOSITORY
from tests.rendered import CONTAINER

FakeNodes = Callable[..., Any]
ENGINES_WITHOUT_ROOT = (CHARLIECLOUD, APPTAINER)
FOUND = {("find",): Completed(0, "/i/tree/etc/covered\n", "")}
USER, ROOT = (
    {("id",): Completed(0, f"{number}\n", ""), ("pwd",): Completed(0, "/r", ""), **FOUND} for number in (1000, 0)
)


def test_another_machine_is_entered_by_root_alone(fake_node: FakeNodes) -> None:
    with pytest.raises(RequestError, match="containers on fake need root there"):
        CHARLIECLOUD.entered(fake_node(USER), CONTAINER)


@pytest.mark.parametrize("engine", ENGINES_WITHOUT_ROOT)
def test_what_is_not_limited_without_root_is_a_substitute(fake_node: FakeNodes, engine: ContainerEngine) -> None:
    assert engine.entered(fake_node(USER, local=True), CONTAINER).substitutes == ("memory:not-limited",)
    assert engine.entered(fake_node(ROOT, local=True), CONTAINER).substitutes == ()


@pytest.mark.parametrize(
    ("engine", "refused"),
    [(CHARLIECLOUD, {"seccomp", "data-layer", "network"}), (APPTAINER, {"seccomp", "data-layer"})],
)
def test_only_what_the_program_has_can_be_switched(engine: ContainerEngine, refused: set[str]) -> None:
    own = [name for name in ABLATIONS.own if name != "oci-runtime"]
    assert {name for name in own if engine.hindrance(properties_of(name))} == refused
    assert not any((engine.by_default, engine.takes_gpus, engine.in_guests))


@pytest.mark.parametrize("engine", ENGINES_WITHOUT_ROOT)
def test_instances_are_joined_by_the_network_of_their_machines_alone(engine: ContainerEngine) -> None:
    engine.check_network("host", in_lab=False)
    assert engine.host_network(None) == "host"
    for network, in_lab in (("host", True), ("overlay", True), ("bridge", False)):
        with pytest.raises(RequestError, match=f"--network {network}: {engine.name} gives its containers"):
            engine.check_network(network, in_lab=in_lab)
    with pytest.raises(RequestError, match="--network host"):
        engine.host_network("/run/netns/n1")


@pytest.mark.parametrize("name", ["charliecloud", "apptainer"])
def test_a_program_that_is_missing_names_its_package(
    node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match=r"does not work on localhost|is not installed") as caught:
        get_engine(name).version(node)
    assert f"package {name};" in str(caught.value.remedy)


def test_charliecloud_needs_user_namespaces(fake_node: FakeNodes) -> None:
    runs = {("env",): Completed(0, "", "0.31\n")}
    assert CHARLIECLOUD.version(fake_node(runs)) == "0.31"
    with pytest.raises(BenchError, match="charliecloud needs user namespaces, which fake does not give"):
        CHARLIECLOUD.version(fake_node({**runs, ("unshare",): Completed(1, "", "Operation not permitted")}))


def test_a_stand_in_for_apptainer_runs_the_commands_of_a_container(
    node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[[str, str], Path]
) -> None:
    tree, data = tmp_path / "tree", tmp_path / "a,b"
    program("apptainer", f'exec {sys.executable} {REPOSITORY}/tests/stand_ins/apptainer.py "$@"')
    (tree / "usr").mkdir(parents=True)
    (tree / "etc").mkdir()
    (tree / "etc/passwd").touch()
    data.mkdir()
    monkeypatch.setattr(unprivileged, "is_root", lambda _: False)
    node.userland, node.data = str(tree), str(data)
    with open_stack(node, [ContainerLayer(APPTAINER, "0123456789abcdef", GIB)]) as inside:
        reported = inside.facts["container_engine"]
        assert isinstance(reported, dict)
        assert (reported["name"], reported["version"], reported["network"]) == ("apptainer", "1.4.0", "none")
        assert inside.run(["nproc"]).stdout.strip() == str(len(node.cpus))
        assert set(inside.run(["env"]).stdout.split()) == {f"PATH={os.environ['PATH']}", f"APPTAINER_CONTAINER={tree}"}
        assert inside.run(["sh", "-c", "exit 7"], check=False).returncode == 7
        assert inside.substitutes == ("memory:not-limited",)
    assert node.opening.parts["container"] > 0
    node.userland = str(data)
    with pytest.raises(BenchError), open_stack(node, [ContainerLayer(APPTAINER, "0123456789abcdef", GIB)]):
        pass
