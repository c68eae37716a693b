"""The GPUs of a machine and the driver's libraries, as a driver shows them that is played: ``tests.stand_ins``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from provisioning import gpu_driver, gpus
from provisioning.gpus import NO_EDITS, Card, DeviceNode, Edits, edits_for
from provisioning.images.needs import gpu_architectures
from provisioning.layers.userland import chroot_argv
from provisioning.nodes import LocalNode
from provisioning.sites.cards import _outdated, _without_code
from suite.errors import RequestError
from suite.interfaces import Completed
from tests.provisioning.conftest import FakeNode, fake_node, raises
from tests.stand_ins import UUIDS, VERSION, driver, with_driver

REMOTE = """
import json, sys
from provisioning.gpus import examined
from provisioning.nodes import LocalNode, local_node
with local_node((0,), None) as node:
    node.local = sys.argv[1] == "here"
    cards, error, libraries = examined(node, sys.argv[2])
    print(json.dumps([[card.index for card in cards], [card.uuid for card in cards], error, libraries]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return driver(tmp_path_factory.mktemp("driver") / "lib")


@pytest.fixture(scope="module")
def cards(installed: Path) -> list[Card]:
    return [Card(**card) for card in json.loads(with_driver(installed, str(Path(gpu_driver.__file__))))["cards"]]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_machine_shows_its_gpus_here_and_as_a_program_elsewhere(installed: Path, tmp_path: Path, where: str) -> None:
    indices, uuids, error, libraries = json.loads(with_driver(installed, "-c", REMOTE, where, str(tmp_path / "made")))
    assert indices == ["0", "1", "2", "3", "3:0", "3:1"]
    assert uuids[2] is None, "a lost GPU answers nothing and ends nothing"
    assert [str(uuid)[:12] for index, uuid in zip(indices, uuids, strict=True) if index in UUIDS] == [*UUIDS.values()]
    assert error is None
    assert libraries.startswith(str(tmp_path / "made" / VERSION))


def test_libraries_lie_under_their_sonames_without_taking_space_and_follow_the_driver(
    installed: Path, tmp_path: Path
) -> None:
    for text in (b"", b"another build of this version"):
        (installed / f"libnvidia-ptx.so.{VERSION}").write_bytes(text)
        answer = with_driver(installed, str(Path(gpu_driver.__file__)), str(tmp_path / "made"))
        assert answer == with_driver(installed, str(Path(gpu_driver.__file__)), str(tmp_path / "made"))
        directory = Path(json.loads(answer)["libraries"])
        assert (directory / f"libnvidia-ptx.so.{VERSION}").read_bytes() == text
    assert str((directory / "libcuda.so.1").readlink()) == f"libcuda.so.{VERSION}"
    assert (directory / "libcuda.so.1").samefile(installed / "libcuda.so.1")
    made = [path.name for path in (tmp_path / "made").iterdir()]
    assert [name.startswith(VERSION) for name in made] == [True, True], "nothing half-made stays"


def test_the_doctor_names_a_lost_gpu_and_shows_the_others(cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "examined", lambda: (cards, None, None))
    first, *others = gpus.gpu_checks()
    assert (first[0], first[2]) == ("nvml", None)
    assert first[1].startswith(f"driver {VERSION}: 0: NVIDIA Stand-in, 1: NVIDIA Stand-in")
    assert [(name, reason) for name, _, reason, _ in others] == [("gpu 2", "NVML: GPU is lost")]
    assert [str(card.whole_uuid)[:12] for card in cards[-2:]] == ["GPU-000000a3"] * 2, "that of an instance's card"


def test_a_machine_without_a_driver_has_no_gpu_and_targets_without_gpus_ask_nothing(node: LocalNode) -> None:
    ((name, _, reason, _),) = gpus.gpu_checks()
    assert (name, str(reason)[:27]) == ("nvml", "no NVIDIA driver answers: N")
    with pytest.raises(RequestError, match="localhost: no NVIDIA driver answers"):
        edits_for(node, ["0"])
    asked = fake_node()
    assert edits_for(asked, ()) == NO_EDITS
    assert asked.ran == []


class Machine(FakeNode):
    """Has the device files of GPU 0; that of nvidia-uvm once its module is loaded, if it ever is."""

    loads = True

    def run(self, argv: Sequence[str], **more: Any) -> Completed:
        loaded = self.loads and ["nvidia-modprobe", "-c0", "-u"] in self.ran
        super().run(argv, **more)
        there = ["/dev/nvidiactl c3 ff 660 44", "/dev/nvidia70 c3 46 666 44"]
        there += ["/dev/nvidia-uvm 1f6 0 666 0"] if loaded else []
        return Completed(1, "\n".join(there), "No such file")


@pytest.mark.parametrize("place", ["/run/nvidia", None])
def test_the_module_of_unified_memory_is_loaded_and_the_worker_told_where_everything_is(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch, place: str | None
) -> None:
    monkeypatch.setattr(gpus, "examined", lambda _, parent: (cards, None, f"{parent}/580"))
    edits = edits_for(Machine(userland="/images/0/tree"), ["0"], place)
    devices = (("/dev/nvidiactl", 195, 255, 44), ("/dev/nvidia70", 195, 70), ("/dev/nvidia-uvm", 502, 0))
    assert edits.devices == tuple(DeviceNode(*each) for each in devices)
    assert edits.mounts == ((("/images/0/driver/580", "/run/nvidia"),) if place else ())
    assert edits.variables["CUDA_VISIBLE_DEVICES"] == cards[0].uuid
    assert edits.variables["LD_LIBRARY_PATH"] == edits.variables["TRITON_LIBCUDA_PATH"]
    assert edits.variables["LD_LIBRARY_PATH"] == (place or "/images/0/driver/580")


def test_a_missing_device_file_is_named_with_what_makes_it(cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "examined", lambda *_: (cards, None, "/d"))
    monkeypatch.setattr(Machine, "loads", False)
    with raises(RequestError, "/dev/nvidia-uvm is missing", "nvidia-modprobe -c0 -u"):
        edits_for(Machine(), ["0"])


@pytest.mark.parametrize(("served", "outdated"), [(None, True), (12080, True), (13000, False)])
def test_what_libcuda_serves_counts_where_cuda_compat_goes_with_an_older_driver(
    served: int | None, outdated: bool, cards: list[Card]
) -> None:
    assert cards[0].cuda == 13000, "the library was asked"
    old = Card("0", driver="570.86.15", uuid="GPU-a", capability=(9, 0), cuda=served)
    assert bool([*_outdated("13.0", [old])]) is outdated


@pytest.mark.parametrize(
    ("architectures", "capability", "remedy"),
    [
        (("sm_75", "sm_80", "sm_90"), (9, 0), None),
        (("sm_75", "sm_80", "sm_90"), (8, 9), None),
        (("sm_75", "sm_80", "sm_90"), (10, 3), "for a newer CUDA, or use an image with a newer torch"),
        (("sm_75", "sm_90", "compute_90"), (12, 0), None),
        (("sm_75", "sm_90a", "sm_100a"), (10, 3), "for a newer CUDA"),
        (("sm_75", "sm_90a"), (9, 0), None),
        (("sm_75", "sm_100f"), (10, 3), None),
        (("sm_75", "sm_120"), (7, 0), "for an older CUDA"),
        (("sm_75", "sm_80"), (), None),
        ((), (12, 0), None),
    ],
)
def test_a_card_that_the_wheel_has_no_code_for_is_refused_with_what_helps(
    architectures: tuple[str, ...], capability: tuple[int, ...], remedy: str | None
) -> None:
    found = [*_without_code(architectures, [Card("0", uuid="GPU-a", capability=capability)])]
    if remedy is None:
        assert found == []
        return
    ((sentence, advice),) = found
    assert sentence.startswith(f"GPU 0 has capability {capability[0]}.{capability[1]}, and torch code for sm_75, ")
    assert remedy in advice


def test_an_image_is_asked_what_its_torch_has_code_for() -> None:
    node = fake_node(answers={("python3", "-c"): Completed(0, "sm_75 sm_90 compute_90\n", "")})
    assert gpu_architectures(node, ["python3"]) == ("sm_75", "sm_90", "compute_90")
    broken = fake_node(answers={("python3", "-c"): Completed(1, "", "ImportError")})
    assert gpu_architectures(broken, ["python3"]) == ()


def test_a_confined_user_joins_the_group_that_may_open_the_device_files() -> None:
    edits = Edits((DeviceNode("/dev/nvidia0", 195, 0, 44), DeviceNode("/dev/nvidiactl", 195, 255)))
    words = chroot_argv("/i/tree", edits, user=1879048200)
    assert "--groups=44" in words
    assert "--clear-groups" not in words
    assert "--clear-groups" in chroot_argv("/i/tree", user=1879048200)
