"""The comparison key: every field of a job is in it, or is exempted with a reason."""

from collections.abc import Iterator
from typing import Any

import pytest

from suite.job.command import CommandJob
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob, MachineSpec
from suite.job.envelope import GIB, Envelope
from suite.job.job import IN_COLUMNS, NOT_IN_KEY, Alternating, Devices, Job, Layers, Loading, leaves, settings
from suite.job.lab import LabSpec
from suite.job.preemption import Preemption
from suite.job.profiles import Sizes
from suite.job.serving import Serving
from suite.job.sharing import Sharing
from suite.targets import OwnMachine

SIZES = Sizes(batch=2, image_px=32, warmup_steps=1, steps=3)
LAB = DistributedJob(
    strategy="all-reduce", workers=2, servers=0, network="overlay", lab=LabSpec(nodes=2, rate="1gbit", delay="5ms")
)
MACHINE = MachineSpec(name="a", address="10.0.0.1", interface="eth0", cpus=(0, 1))
MACHINES = DistributedJob(
    strategy="all-reduce", workers=1, servers=0, network="host", machines=(MACHINE,), guests="routed"
)
GPUS = {"gpus": "0", "vfio": "0000:01:00.0"}
WHOLE = Job(
    scenario="shared",
    model="resnet50",
    data="generated",
    profile="smoke",
    sizes=SIZES,
    unit="images",
    envelope=Envelope(cpus=(0, 1), memory_bytes=2 * GIB, threads=2),
    machines=(OwnMachine(name="a", targets=("vm",), cpus=(0, 1)),),
    devices=Devices(),
    isa="shared",
    cpu_capability="avx2",
    dataset=Dataset(kind="mnist", directory="/d", sha256="a" * 64, images=10, size_bytes=100, device="/dev/sdb"),
    page_cache="cold",
    loading=Loading(decoder="pillow", loader_workers=2),
    distributed=LAB,
    sharing=Sharing(aggressors=("alexnet",), workloads={"alexnet": SIZES}, sources={"toy": "e" * 64}),
    command=CommandJob(argv=("python", "train.py"), throughput="json"),
    serving=Serving(requests=100, rates=(20.0,), clients=4, image_px=28, channels=1),
    fio_job="b" * 64,
    workload_sha256="c" * 64,
    checkpoint="fsync",
    preemption=Preemption(mean_s=60, notice_s=5),
    reproducible=False,
    shares_batch=True,
    generate=7,
    keep_model="each",
    layers=Layers(engine="runc", provider="qemu", accelerator="kvm", image="d" * 64, **GPUS, confinement="user"),
    turns=Alternating(rounds=2, burst_steps=3, partner="vm"),
)


def paths(part: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every value in a job as it is stored; those in lists of parts once."""
    if isinstance(part, dict):
        for name, value in part.items():
            yield from paths(value, f"{path}.{name}" if path else name)
    elif isinstance(part, list) and part and isinstance(part[0], dict):
        yield from paths(part[0], path)
    elif part != []:
        yield path


def changed(part: Any, path: list[str]) -> Any:
    """Return the stored job with another value at the path."""
    if isinstance(part, list) and part and isinstance(part[0], dict):
        return [changed(part[0], path), *part[1:]]
    if path:
        return {**part, path[0]: changed(part[path[0]], path[1:])}
    if isinstance(part, list):
        return [*part, part[-1] + 1 if isinstance(part[-1], int) else f"{part[-1]}x"]
    return part + 1 if isinstance(part, int) else f"{part}x"


STORED = [WHOLE.model_dump(mode="json"), WHOLE.model_copy(update={"distributed": MACHINES}).model_dump(mode="json")]
EVERY = sorted({path for stored in STORED for path in paths(stored)})


def test_the_samples_hold_every_field_of_a_job() -> None:
    absent = {name for name, value in STORED[0].items() if value is None}
    assert absent == set()
    assert set(NOT_IN_KEY) <= set(EVERY), "an exemption of a field that is gone"
    assert all(NOT_IN_KEY.values())


@pytest.mark.parametrize("path", EVERY)
def test_a_field_that_differs_keeps_trials_apart_or_is_exempted_with_a_reason(path: str) -> None:
    stored = next(each for each in STORED if path in set(paths(each)))
    other = changed(stored, path.split("."))
    same = dict(leaves(stored)) == dict(leaves(other))
    assert same == (path in NOT_IN_KEY)


def test_the_number_of_cpus_is_in_the_key_and_which_ones_is_not() -> None:
    other = WHOLE.model_copy(update={"envelope": WHOLE.envelope.model_copy(update={"cpus": (2, 3)})})
    fewer = WHOLE.model_copy(update={"envelope": WHOLE.envelope.model_copy(update={"cpus": (2,)})})
    assert settings(other) == settings(WHOLE) != settings(fewer)


def test_settings_are_told_by_names_for_people() -> None:
    told = settings(WHOLE)
    assert (told["cpus"], told["memory"], told["batch"], told["lab.rate"]) == ("2", "2 GiB", "2", "1gbit")
    assert (told["engine"], told["data_sha256"], told["workloads.alexnet.steps"]) == ("runc", "a" * 64, "3")
    assert not set(told) & {*IN_COLUMNS, "directory"}


@pytest.mark.parametrize(
    ("changes", "global_batch"),
    [
        ({"distributed": None}, 2),
        ({"distributed": None, "devices": Devices(device="cuda", devices=4, parallel="ddp")}, 8),
        ({"distributed": LAB}, 4),
        ({"distributed": LAB, "devices": Devices(device="cuda", devices=2, parallel="parameter-cpu")}, 8),
        ({"distributed": LAB.model_copy(update={"strategy": "split"})}, 2),
        ({"distributed": LAB, "sizes": None}, None),
    ],
)
def test_the_global_batch_is_that_of_all_ranks(changes: dict[str, Any], global_batch: int | None) -> None:
    assert WHOLE.model_copy(update={"shares_batch": None, **changes}).global_batch == global_batch
