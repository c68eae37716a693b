"""The options of scenarios and designs: what they plan, and what is refused before anything is started."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from commands.run.prepare import between_checkpoints, in_epochs
from commands.run.validate import check_turns, fitted
from provisioning.sites.cluster import JoinedPods
from provisioning.targets import Choices
from scenarios.distributed import Distributed
from scenarios.probe import Probing
from scenarios.serve import Serve
from scenarios.shared import Shared
from scenarios.training import Real, Synthetic
from suite.errors import RequestError
from suite.job.distributed import DistributedJob
from suite.job.envelope import GIB, Envelope
from suite.job.job import Alternating, settings
from suite.job.lab import LabSpec
from suite.job.profiles import PROFILES, Profile
from suite.job.serving import LOADS, Serving
from suite.job.sharing import PAPERS_VICTIMS, Sharing, victim_names
from suite.plan import Plan, together
from suite.registries import SCENARIOS, WORKLOADS
from suite.request.parts import learning_rate_of
from suite.request.request import RunRequest
from suite.request.scenario import scenario_of
from tests.provisioning.conftest import raises
from tests.sites import IMAGE
from tests.suite.conftest import make_plan

TARGETS = ("bare-metal", "container")


def request(**options: Any) -> RunRequest:
    return RunRequest.of({"design": "alternating", **options})


def check(asked: RunRequest, targets: tuple[str, ...] = TARGETS, at_the_site: str = "") -> None:
    check_turns(asked, scenario_of(asked), targets, at_the_site)


def test_turns_have_defaults_can_be_stated_and_are_part_of_the_comparison_key() -> None:
    assert RunRequest.of({}).measurement.turns is None
    assert request().measurement.turns == Alternating(rounds=8, burst_steps=2)
    assert request(rounds=3, burst_steps=2).measurement.turns == Alternating(rounds=3, burst_steps=2)
    assert request(design="both", steps=7).measurement.turns == Alternating(rounds=8, burst_steps=2)
    found = settings(in_turns().job)
    assert (found["design"], found["rounds"], found["burst_steps"]) == ("alternating", "2", "3")
    assert "design" not in settings(make_plan().job), "a sequential job is what jobs were before"


@pytest.mark.parametrize("options", [{}, {"cache": "cold"}])
def test_what_cannot_take_turns_is_refused_in_one_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="a cold page cache is cold once, and not in every turn") as caught:
        check(request(scenario="real", **options))
    assert caught.value.message.startswith("--design alternating with --scenario ")
    assert "." not in caught.value.message.rstrip(".")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"throughput": "auto"}, "its own clock, which makes the throughput, would count the time"),
        ({"design": "both", "throughput": "auto"}, "its own clock"),
        ({"rounds": 3}, "a command takes a turn of 0.5 s until it has ended"),
        ({"device": "cuda"}, "its GPU would compute on while it is stopped"),
    ],
)
def test_a_command_that_turns_would_change_is_refused_them(options: dict[str, Any], why: str) -> None:
    check(request(scenario="command", command="python train.py"))
    check(request(scenario="command", command="python a.py", versus="python b.py"), ("bare-metal",))
    with pytest.raises(RequestError, match=why):
        check(request(scenario="command", command="python train.py", **options))


def test_what_can_take_turns_is_not_refused_and_nodes_of_a_cluster_are() -> None:
    check(request())
    check(request(scenario="real", cache="warm"))
    check(request(scenario="distributed"))
    check(request(scenario="probe", probe=("cpu", "memory", "syscall")))
    check(RunRequest.of({"scenario": "shared"}))
    check(request(aa=True), ("bare-metal",))
    assert all(hasattr(each, "turn_taker") for each in (Synthetic, Real, Distributed, Probing))
    with pytest.raises(RequestError, match="a node of a cluster holds one job at a time"):
        check(request(scenario="distributed"), at_the_site=JoinedPods.no_turns)


def in_turns(**changes: Any) -> Plan:
    plan = make_plan(**changes)
    turns = Alternating(rounds=2, burst_steps=3)
    return plan.model_copy(update={"jobs": tuple(job.model_copy(update={"turns": turns}) for job in plan.jobs)})


def told(plan: Plan, memory_bytes: int) -> tuple[Plan, list[str]]:
    notes: list[str] = []
    return fitted(plan, memory_bytes, notes.append), notes


def test_instances_that_do_not_fit_take_turns_with_bare_metal_one_at_a_time_or_are_refused() -> None:
    assert told(in_turns(), 6 * GIB) == (in_turns(), [])
    assert told(make_plan(), GIB) == (make_plan(), [])
    plan, notes = told(in_turns(aa=True, blocks=1), 5 * GIB)
    (note,) = notes
    assert "4 instances of 2.0 GiB take 8.0 GiB, and the machine has 5.0 GiB: bare metal takes turns with one" in note
    groups = [{(trial.target, trial.replica) for trial in group} for group in together(plan.trials())]
    base = ("bare-metal", 0)
    assert groups == [{base, ("bare-metal", 1)}, {base, ("container", 0)}, {base, ("vm", 0)}]
    names = [trial.trial_id for trial in plan.trials()]
    assert len(set(names)) == len(names)
    assert names == [trial.trial_id for trial in plan.trials()]
    assert {settings(job)["partner"] for job in plan.jobs} == {"bare-metal", "container", "vm"}
    alone = in_turns(targets=("bare-metal",), ablations=("pinning",))
    with pytest.raises(RequestError, match=r"2 instances of 2\.0 GiB take 4\.0 GiB, and the machine has 3\.0 GiB"):
        told(alone, 3 * GIB)
    with pytest.raises(RequestError, match=r"2 instances of 2\.0 GiB take 4\.0 GiB, and the machine has 3\.0 GiB"):
        fitted(in_turns(), 3 * GIB, pytest.fail)


FOUR = Envelope(cpus=(0, 1, 2, 3), memory_bytes=4 * GIB, threads=4)


def shared(**options: Any) -> RunRequest:
    return RunRequest.of({"scenario": "shared", "profile": "paper", **options})


def sharing_of(asked: RunRequest) -> Sharing:
    sharing = Shared().part(asked, PROFILES["paper"], "resnet50")["sharing"]
    assert isinstance(sharing, Sharing)
    return sharing


def check_shares(envelope: Envelope, targets: Sequence[str], note: Callable[[str], Any], **options: Any) -> None:
    Shared().check_shares(shared(aggressor=["disk"], aggressors=2, **options), envelope, targets, note)


def test_aggressors_and_victims_are_the_papers_by_default_and_one_where_only_the_path_is_proved() -> None:
    sharing = sharing_of(shared(aggressor=["alexnet", "disk"]))
    assert (sharing.aggressors, sharing.copies) == (("alexnet", "disk"), 1)
    assert {name: workload.batch for name, workload in sharing.workloads.items()} == {"alexnet": 512}
    assert sharing_of(shared(aggressor=["disk"], aggressors=3)).copies == 3
    assert shared().models == PAPERS_VICTIMS
    assert shared(profile="smoke").models == ("resnet50",)
    assert shared(profile="smoke", model="all").models == victim_names()
    assert shared(scenario="synthetic").models == ("resnet50",)
    assert shared(scenario="synthetic", model="all").models == WORKLOADS.names()


def test_a_machine_that_is_too_small_is_refused_with_the_arithmetic_except_for_bare_metal() -> None:
    check_shares(FOUR, ["vm"], pytest.fail)
    narrow = Envelope(cpus=(0, 1), memory_bytes=4 * GIB, threads=2)
    with raises(RequestError, r"3 instances on 2 CPUs: there is 0\.67 of a CPU for each", "--cpus 3"):
        check_shares(narrow, ["vm"], pytest.fail)
    narrow = Envelope(cpus=(0,), memory_bytes=4 * GIB, threads=1)
    notes: list[str] = []
    check_shares(narrow, ["bare-metal"], notes.append)
    assert "as its operating system likes" in notes[0]


def choices(gpus: tuple[str, ...] = ()) -> Choices:
    return Choices(IMAGE, "runc", "kvm", gpus)


def test_each_instance_has_gpus_of_its_own_where_there_are_enough_and_else_they_are_shared() -> None:
    assert [choices(("0", "1")).of_instance(number, 2).gpus for number in range(2)] == [("0",), ("1",)]
    assert [choices(("0",)).of_instance(number, 2).gpus for number in range(2)] == [("0",), ("0",)]
    assert choices().of_instance(1, 2).gpus == ()


def serve(**options: Any) -> RunRequest:
    return RunRequest.of({"scenario": "serve", **options})


def serving_of(asked: RunRequest, profile: Profile, model: str) -> Serving:
    serving = Serve().part(asked, profile, model)["serving"]
    assert isinstance(serving, Serving)
    return serving


def test_the_load_is_that_of_the_profile_unless_it_is_given() -> None:
    for profile, load_of_profile in LOADS.items():
        serving = serving_of(serve(profile=profile), PROFILES[profile], "gan")
        assert {name: getattr(serving, name) for name in type(load_of_profile).model_fields} == dict(load_of_profile)
        assert (serving.image_px, serving.channels) == (28, 1)
    own = serving_of(serve(requests=7, rates="5,0.5", clients=3, image_px=64, channels="1"), PROFILES["smoke"], "dcgan")
    assert (own.requests, own.rates, own.clients, own.image_px, own.channels) == (7, (5.0, 0.5), 3, 64, 1)
    assert set(LOADS) == {name for name, profile in PROFILES.items() if not profile.settle_s}
    assert (Serve().ranks(serve()), Serve().strategy(serve())) == ((1, 1), None)
    assert DistributedJob(workers=1, servers=1, network="overlay", lab=LabSpec(nodes=2)).roles == ("server", "client")


def test_generators_are_served_and_nothing_else() -> None:
    assert serve().models == ("gan",)
    served = [name for name in WORKLOADS.own if WORKLOADS.get(name).generates]
    assert served == ["gan", "gan-published", "dcgan", "dcgan-published", "vae", "progressive-gan", "transformer"]
    for name in served:
        Serve().check_model(serve(model=served), name)


def test_steps_between_checkpoints_and_of_epochs_are_whole() -> None:
    sizes = PROFILES["quick"].sizes_of("gan")
    parts = between_checkpoints(sizes, 5)
    assert (parts.steps, parts.warmup_steps, parts.epochs) == (20, sizes.warmup_steps, 4)
    usual = RunRequest.of({"model": ("gan",)})
    assert Synthetic().scratch_bytes(usual, ("gan",)) == {}
    writing = usual.changed(checkpoint="fsync", checkpoint_every=5)
    assert Synthetic().scratch_bytes(writing, ("gan",)) == {"gan": 4 << 30}
    sizes = PROFILES["smoke"].sizes_of("gan").model_copy(update={"epochs": 3})
    planned = in_epochs("gan", sizes, 42, 2)
    assert (planned.batch, planned.steps, planned.warmup_steps, planned.epochs) == (4, 3 * 5, 0, 3)
    with raises(RequestError, "--epochs 3 of gan are 750,000 steps", "--batch"):
        in_epochs("gan", sizes, 1_000_000, 1)


@pytest.mark.parametrize("scenario", ["synthetic", "real"])
def test_images_are_generated_by_what_generates_images_and_nothing_else(scenario: str) -> None:
    kind = SCENARIOS.get(scenario)
    asked = RunRequest.of({"scenario": scenario, "generate": 8})
    for name in WORKLOADS.own:
        if scenario not in (WORKLOADS.get(name).scenarios or (scenario,)):
            continue
        if WORKLOADS.get(name).makes_images:
            kind.of(asked).check_model(asked, name)
            continue
        with raises(RequestError, f"{name} generates no images", "leave out --generate"):
            kind.of(asked).check_model(asked, name)


def test_epochs_of_a_distributed_job_take_a_data_set_and_batches_of_all_workers() -> None:
    with raises(RequestError, "--epochs needs a data set", "--data"):
        RunRequest.of({"scenario": "distributed", "epochs": 2})
    request = RunRequest.of({"scenario": "distributed", "epochs": 2, "data": "generated", "workers": 3})
    assert Distributed().batches(request) == 3
    assert Distributed().batches(request.changed(strategy="split", workers=2)) == 1
    assert Synthetic().batches(RunRequest.of({})) == 1


def test_a_learning_rate_is_a_number_above_zero_of_what_trains() -> None:
    assert learning_rate_of("2e-4") == 0.0002
    for text in ("0", "-1", "fast", "inf", "nan"):
        with raises(RequestError, "is not a learning rate", "2e-4"):
            learning_rate_of(text)
    request = RunRequest.of({"model": ["collectives"], "scenario": "distributed", "learning_rate": "0.1"})
    with raises(RequestError, "collectives trains nothing", "--learning-rate"):
        Distributed().check_model(request, "collectives")
