"""Jobs: their comparison key, in which every field is or is exempted with a reason, their words and their sizes."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from suite.errors import RequestError
from suite.job.command import CommandJob, parse_command
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob, MachineSpec
from suite.job.envelope import GIB, Envelope, format_cpu_list, parse_cpu_list
from suite.job.job import (
    IN_COLUMNS,
    NOT_IN_KEY,
    Alternating,
    Devices,
    Job,
    Layers,
    Loading,
    comparison_key,
    leaves,
    settings,
)
from suite.job.lab import LabSpec
from suite.job.preemption import Preemption
from suite.job.profiles import PROFILES, Profile, Sizes, check_sizes
from suite.job.serving import Serving
from suite.job.sharing import Sharing
from suite.registries import WORKLOADS
from suite.targets import OwnMachine
from tests.jobs import in_job

SIZES = Sizes(batch=2, image_px=32, warmup_steps=1, steps=3)
LAB = DistributedJob(
    strategy="all-reduce", workers=2, servers=0, network="overlay", lab=LabSpec(nodes=2, rate="1gbit", delay="5ms")
)
MACHINE = MachineSpec(name="a", address="10.0.0.1", interface="eth0", cpus=(0, 1))
MACHINES = DistributedJob(
    strategy="all-reduce", workers=1, servers=0, network="host", machines=(MACHINE,), guests="routed"
)
GPUS = {"gpus": "0"}
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
    workload_sha256="c" * 64,
    checkpoint="fsync",
    resize_at="0=1,20=2",
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


def test_settings_are_told_by_names_for_people() -> None:
    told = settings(WHOLE)
    assert (told["cpus"], told["memory"], told["batch"], told["lab.rate"]) == ("2", "2 GiB", "2", "1gbit")
    assert (told["engine"], told["data_sha256"], told["workloads.alexnet.steps"]) == ("runc", "a" * 64, "3")
    assert not set(told) & {*IN_COLUMNS, "directory"}


PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=20)


@given(st.lists(PRINTABLE, min_size=1, max_size=5))
def test_the_words_are_those_that_a_shell_would_make_and_have_a_name_that_files_can_have(words: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}", CommandJob(argv=tuple(words)).name)
    assume(not re.match(r"\w+=", words[0]))  # a variable, which is refused
    assert parse_command(shlex.join(words)) == tuple(words)


def test_the_words_and_the_pattern_are_part_of_the_comparison_key() -> None:
    def job(*argv: str) -> Job:
        command = CommandJob(argv=argv, throughput="(?P<throughput>x; y)")
        values = {"scenario": "command", "model": "x", "command": command}
        envelope = {"cpus": (0,), "memory_bytes": 1 << 30, "threads": 1}
        return Job.model_validate(in_job({**values, "envelope": envelope})["job"])

    def key(*argv: str) -> dict[str, str]:
        return settings(job(*argv))

    assert key("python", "-c", "a; b")["command.argv"] == "python -c 'a; b'"
    assert key("python", "-c", "a; b") != key("python", "-c", "a;b")
    assert key("a", "b c") != key("a", "b", "c")
    assert len(str(comparison_key(job("a; b"))).split("; ")) == len(key("a; b")), "as text it can be divided again"


@given(st.sets(st.integers(min_value=0, max_value=8191), min_size=1))
def test_a_cpu_list_comes_back_from_its_text(cpus: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))


def test_the_paper_profile_is_table_1_of_the_paper() -> None:
    workloads = {name: PROFILES["paper"].sizes_of(name) for name in ("inception_v3", "resnet50", "alexnet")}
    # shared/reference/README.md: batch per device 32, 32, 512; 10 warm-up steps, then 100 measured steps.
    assert {model: w.batch for model, w in workloads.items()} == {"inception_v3": 32, "resnet50": 32, "alexnet": 512}
    assert {(w.warmup_steps, w.steps) for w in workloads.values()} == {(10, 100)}
    # The models' own image sizes.
    assert {name: w.image_px for name, w in workloads.items()} == {"inception_v3": 299, "resnet50": 224, "alexnet": 224}


def test_the_gpu_profile_has_the_sizes_of_paper_and_is_long_enough_for_clocks_to_settle() -> None:
    for name in WORKLOADS:
        gpu, paper = (PROFILES[profile].sizes_of(name) for profile in ("gpu", "paper"))
        assert gpu == paper.model_copy(update={"steps": 1000, "settle_s": 5.0, "least_s": 20.0})


def test_a_job_on_a_gpu_has_memory_for_the_libraries_of_cuda_in_every_profile() -> None:
    gib = {
        name: (profile.memory_for("cpu") / GIB, profile.memory_for("cuda") / GIB) for name, profile in PROFILES.items()
    }
    assert gib == {"paper": (8, 8), "gpu": (16, 16), "quick": (3, 8), "smoke": (2, 8)}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
def test_every_profile_says_what_it_is_for_and_has_every_model(profile: Profile) -> None:
    assert PROFILES[profile.name] is profile
    assert profile.summary
    for name in WORKLOADS:
        check_sizes(name, profile.sizes_of(name), name)


def test_profiles_grow_from_smoke_to_paper() -> None:
    def work(name: str) -> int:
        sizes = [PROFILES[name].sizes_of(workload) for workload in WORKLOADS]
        return sum(w.batch * (w.image_px or 0) ** 2 * (w.steps + w.warmup_steps) for w in sizes)

    assert work("smoke") < work("quick") < work("paper")


def test_a_workload_without_sizes_for_a_profile_is_refused_with_those_it_has() -> None:
    huge = PROFILES["paper"].model_copy(update={"name": "huge"})
    with pytest.raises(RequestError, match="alexnet has no sizes for the profile huge") as caught:
        huge.sizes_of("alexnet")
    assert caught.value.remedy == "use --profile paper or quick or smoke"
