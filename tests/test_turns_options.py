"""The options of the alternating design: what they plan, and what is refused before anything is started."""

from typing import Any

import pytest

from commands.run.validate import check_turns, fitted
from provisioning.sites.cluster import JoinedPods
from scenarios.distributed import Distributed
from scenarios.probe import Probing
from scenarios.real import Real
from scenarios.synthetic import Synthetic
from suite.errors import RequestError
from suite.job.envelope import GIB
from suite.job.job import Alternating, settings
from suite.plan import Plan, together
from suite.request.request import RunRequest
from suite.request.scenario import scenario_of
from tests.suite.conftest import make_plan

TARGETS = ("bare-metal", "container")


def request(**options: Any) -> RunRequest:
    return RunRequest.of({"design": "alternating", **options})


def check(asked: RunRequest, targets: tuple[str, ...] = TARGETS, at_the_site: str = "") -> None:
    check_turns(asked, scenario_of(asked), targets, at_the_site)


def test_turns_have_defaults_and_can_be_stated() -> None:
    assert RunRequest.of({}).measurement.turns is None
    assert request().measurement.turns == Alternating(rounds=8, burst_steps=5)
    assert request(rounds=3, burst_steps=2).measurement.turns == Alternating(rounds=3, burst_steps=2)
    assert request(design="both", steps=7).measurement.turns == Alternating(rounds=8, burst_steps=5)


@pytest.mark.parametrize("options", [{}, {"cache": "cold"}])
def test_what_cannot_take_turns_is_refused_in_one_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="a cold page cache is cold once, and not in every turn") as caught:
        check(request(scenario="real", **options))
    assert caught.value.message.startswith("--design alternating with --scenario ")
    assert "." not in caught.value.message.rstrip(".")
    assert caught.value.remedy


def test_what_can_take_turns_is_not() -> None:
    check(request())
    check(request(scenario="real", cache="warm"))
    check(request(scenario="distributed"))
    check(request(scenario="probe", probe=("cpu", "memory", "syscall")))
    check(RunRequest.of({"scenario": "shared"}))
    check(request(aa=True), ("bare-metal",))
    assert all(hasattr(each, "turn_taker") for each in (Synthetic, Real, Distributed, Probing))


def test_nodes_of_a_cluster_take_no_turns() -> None:
    with pytest.raises(RequestError, match="a node of a cluster holds one job at a time"):
        check(request(scenario="distributed"), at_the_site=JoinedPods.no_turns)


def in_turns(**changes: Any) -> Plan:
    plan = make_plan(**changes)
    turns = Alternating(rounds=2, burst_steps=3)
    return plan.model_copy(update={"jobs": tuple(job.model_copy(update={"turns": turns}) for job in plan.jobs)})


def told(plan: Plan, memory_bytes: int) -> tuple[Plan, list[str]]:
    notes: list[str] = []
    return fitted(plan, memory_bytes, notes.append), notes


def test_instances_that_fit_beside_each_other_are_open_at_once() -> None:
    assert told(in_turns(), 6 * GIB) == (in_turns(), [])
    assert told(make_plan(), GIB) == (make_plan(), [])


def test_where_they_do_not_bare_metal_takes_turns_with_one_at_a_time() -> None:
    plan, notes = told(in_turns(aa=True, blocks=1), 5 * GIB)
    (note,) = notes
    assert "4 instances of 2.0 GiB take 8.0 GiB, and the machine has 5.0 GiB: bare metal takes turns with one" in note
    groups = [{(trial.target, trial.replica) for trial in group} for group in together(plan.trials())]
    base = ("bare-metal", 0)
    assert groups == [{base, ("bare-metal", 1)}, {base, ("container", 0)}, {base, ("vm", 0)}]
    names = [trial.trial_id for trial in plan.trials()]
    assert len(set(names)) == len(names)
    assert names == [place.trial_id for place in plan.places()]
    assert {settings(job)["partner"] for job in plan.jobs} == {"bare-metal", "container", "vm"}


def test_two_that_do_not_fit_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(RequestError, match=r"2 instances of 2\.0 GiB take 4\.0 GiB, and the machine has 3\.0 GiB"):
        fitted(in_turns(), 3 * GIB, pytest.fail)


def test_the_design_is_part_of_the_comparison_key() -> None:
    found = settings(in_turns().job)
    assert (found["design"], found["rounds"], found["burst_steps"]) == ("alternating", "2", "3")
    assert "design" not in settings(make_plan().job), "a sequential job is what jobs were before"
