"""The inventory of machines: what is read, and how the rest is refused."""

from pathlib import Path

import pytest

from suite.errors import RequestError
from suite.inventory import read_inventory
from suite.targets import TARGETS, ListedMachine


def written(place: Path, text: str) -> Path:
    path = place / "hosts.toml"
    path.write_text(text)
    return path


def node(*lines: str, name: str = "n1", host: str = "gpu1") -> str:
    return "\n".join(("[[node]]", f'name = "{name}"', f'host = "{host}"', *lines, ""))


def test_a_configuration_of_ssh_is_looked_for_beside_the_inventory(tmp_path: Path) -> None:
    (tmp_path / "ssh_config").write_text("")
    (read,) = read_inventory(written(tmp_path, node('ssh_config = "ssh_config"'))).nodes
    assert read.ssh_config == tmp_path / "ssh_config"
    with pytest.raises(RequestError, match=r"n1 names .*/elsewhere, which does not exist"):
        read_inventory(written(tmp_path, node('ssh_config = "elsewhere"')))


def test_targets_are_on_the_machine_that_lists_them_where_the_suite_boots_nothing(tmp_path: Path) -> None:
    text = node() + node('targets = ["vm", "container-vm"]', name="n2", host="vm1")
    inventory = read_inventory(written(tmp_path, text))
    assert [[each.name for each in inventory.of_target(target)] for target in TARGETS] == [["n1"]] * 2 + [["n2"]] * 2
    assert [inventory.opened_as(target) for target in TARGETS] == ["bare-metal", "container", "bare-metal", "container"]
    unlisted = read_inventory(written(tmp_path, node()))
    assert [unlisted.opened_as(target) for target in TARGETS] == list(TARGETS)


@pytest.mark.parametrize(
    ("targets", "virtual", "hypervisor", "said"),
    [
        (("vm",), False, True, ""),
        (("vm",), False, False, "n1 is listed for vm, and its CPU reports no hypervisor"),
        (("vm",), True, False, "n1 is listed for vm, and its CPU reports no hypervisor"),
        (("bare-metal",), False, False, ""),
        (("bare-metal",), False, True, "n1 is listed for bare-metal, and its CPU reports a hypervisor"),
        (("bare-metal",), True, True, ""),
        (("bare-metal",), True, False, ""),
    ],
)
def test_a_machine_is_virtual_as_it_is_listed_or_contradicts(
    targets: tuple[str, ...], virtual: bool, hypervisor: bool, said: str
) -> None:
    machine = ListedMachine(name="n1", targets=targets, virtual=virtual)
    assert machine.contradiction(hypervisor=hypervisor) == said
