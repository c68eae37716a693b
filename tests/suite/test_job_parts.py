"""The parts of a job: commands, distributed jobs, envelopes, and profiles with their sizes."""

import re
import shlex

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from suite.errors import RequestError
from suite.job.command import CommandJob, parse_command
from suite.job.distributed import DistributedJob, MachineSpec, instances_of
from suite.job.envelope import GIB, Envelope, format_cpu_list, parse_cpu_list, plan_envelope
from suite.job.job import Job, comparison_key, settings
from suite.job.lab import LabSpec
from suite.job.profiles import PROFILES, Profile, Sizes, check_sizes
from suite.registries import WORKLOADS
from tests.jobs import in_job

PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=20)


@given(st.lists(PRINTABLE, min_size=1, max_size=5))
def test_the_words_are_those_that_a_shell_would_make(words: list[str]) -> None:
    assume(not re.match(r"\w+=", words[0]))  # a variable, which is refused
    assert parse_command(shlex.join(words)) == tuple(words)


@given(st.lists(PRINTABLE, min_size=1, max_size=5))
def test_every_command_has_a_name_that_files_can_have(words: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}", CommandJob(argv=tuple(words)).name)


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


ENVELOPE = Envelope(cpus=(0, 1), memory_bytes=4 << 30, threads=2)


def machines(count: int) -> tuple[MachineSpec, ...]:
    return tuple(
        MachineSpec(name=f"n{n}", address=f"10.0.0.{n}", interface="eth0", cpus=(n, n + 1)) for n in range(1, count + 1)
    )


def distributed_job(*, lab: LabSpec | None = None, machines: tuple[MachineSpec, ...] = ()) -> DistributedJob:
    return DistributedJob(
        strategy="parameter-server", workers=2, servers=1, network="overlay", lab=lab, machines=machines
    )


def test_each_machine_gives_the_whole_envelope_on_its_own_cpus() -> None:
    planned = instances_of(distributed_job(machines=machines(3)), ENVELOPE)
    assert [each.envelope.cpus for each in planned] == [(1, 2), (2, 3), (3, 4)]
    assert {each.envelope.memory_bytes for each in planned} == {ENVELOPE.memory_bytes}
    assert {each.envelope.threads for each in planned} == {2}
    assert [each.role for each in planned] == ["server", "worker", "worker"]


def test_the_nodes_of_a_lab_share_the_envelope() -> None:
    planned = instances_of(distributed_job(lab=LabSpec(nodes=3)), ENVELOPE)
    assert {each.envelope.memory_bytes for each in planned} == {ENVELOPE.memory_bytes // 3}


@pytest.mark.parametrize(
    ("lab", "count", "said"),
    [(None, 0, "in a lab or on machines"), (LabSpec(nodes=3), 3, "in a lab or on machines"), (None, 2, "2 machines")],
)
def test_a_cluster_stands_in_one_place_with_room_for_every_rank(lab: LabSpec | None, count: int, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        distributed_job(lab=lab, machines=machines(count))


def planned(cpus: str | None = None, memory_bytes: int = GIB, threads: int | None = None) -> Envelope:
    return plan_envelope(cpus, memory_bytes, threads, host_cpus=(5, 0, 1, 2), host_memory_bytes=8 * GIB)


@given(st.sets(st.integers(min_value=0, max_value=8191), min_size=1))
def test_a_cpu_list_comes_back_from_its_text(cpus: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))


def test_a_cpu_list_is_written_with_the_shortest_runs() -> None:
    assert format_cpu_list((5, 2, 1, 0, 7, 8)) == "0-2,5,7-8"
    assert format_cpu_list(()) == ""


def test_without_a_wish_all_allowed_cpus_are_taken_and_a_thread_for_each() -> None:
    assert planned() == Envelope(cpus=(0, 1, 2, 5), memory_bytes=GIB, threads=4)


def test_a_count_takes_the_first_cpus_and_a_list_takes_its_own() -> None:
    assert planned("2").cpus == (0, 1)
    assert planned("2,5").cpus == (2, 5)
    assert planned("2,5", threads=1).threads == 1


@pytest.mark.parametrize("cpus", ["5", "0", "99999999"])
def test_a_wrong_count_of_cpus_is_refused_with_the_arithmetic(cpus: str) -> None:
    with pytest.raises(RequestError, match=rf"--cpus {cpus}: this host allows CPUs 0-2,5 \(4\)") as caught:
        planned(cpus)
    assert caught.value.remedy == "ask for 1 to 4"


def test_cpus_that_the_host_does_not_allow_are_refused_by_number() -> None:
    with pytest.raises(RequestError, match=r"--cpus 0,3-4: no CPU 3-4; this host allows CPUs 0-2,5 \(4\)"):
        planned("0,3-4")


def test_too_much_memory_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(RequestError, match=r"9\.0 GiB of memory asked for, the host has 8\.0 GiB"):
        planned(memory_bytes=9 * GIB)
    assert planned(memory_bytes=8 * GIB).memory_bytes == 8 * GIB


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


@pytest.mark.parametrize(
    ("model", "batch", "image_px", "least"),
    [("resnet50", 1, 32, 2), ("inception_v3", 1, 106, 2), ("resnet50", 1, 33, None), ("alexnet", 1, 64, None)],
)
def test_a_batch_of_one_is_refused_where_its_last_layers_are_single_numbers(
    model: str, batch: int, image_px: int, least: int | None
) -> None:
    sizes = Sizes(batch=batch, image_px=image_px, warmup_steps=1, steps=2)
    if least is None:
        check_sizes(model, sizes, f"--model {model}")
        return
    with pytest.raises(RequestError, match=f"cannot train on batches of 1 at {image_px} px") as refused:
        check_sizes(model, sizes, f"--model {model}")
    assert refused.value.remedy == f"give --batch {least} or more"
