"""A rerun beside earlier records: it agrees, differs or is open, on the same machine and on another one."""

import math
import re
from pathlib import Path

import pytest

from analysis.compare.rerun import compare_rerun
from analysis.report.sweeps.rerun import rerun_document
from commands.reproduce.rerun import refuse_other_jobs
from suite.errors import RequestError
from suite.records.environment import Environment, Environments
from suite.records.usage import Conditions
from suite.request.next_step import NextStep, bench
from tests.analysis.conftest import Save, measured, printed


def blocks(
    save: Save, run: str, speeds: dict[str, float], *, number: int = 6, host: str = "here", busy: float = 0.0
) -> None:
    """Save blocks of targets with these speeds, which differ by up to 0.2 % from block to block."""
    here = Environment(hostname=host, machine_id=host, userland_sha256="a" * 64, torch_cpu_capability="AVX2")
    for block in range(number):
        for target, speed in speeds.items():
            noise = math.exp(0.001 * math.sin(block * len(target + run)))
            save(
                run,
                block=block,
                target=target,
                environment=Environments(host=here, target=here),
                conditions=Conditions(interval_s=20.0, other_cpu_s=busy),
                **measured(speed * noise),
            )


BEFORE = {"bare-metal": 10.0, "container": 8.0}


def further(blocks: int) -> NextStep | None:
    return bench("reproduce", "closer2018", "--blocks", str(blocks), decides="whether it agrees")


def shown(save: Save, *, elsewhere: bool = False) -> str:
    comparison = compare_rerun(save.load("before", "after"), save.path / "after")
    return printed(rerun_document(comparison, further, elsewhere=elsewhere))


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        (BEFORE, "The rerun agrees with the earlier records (margin 2 %): 6 equivalent"),
        # Both targets alike: times and rates differ, what the container has over bare metal does not.
        (
            {"bare-metal": 8.0, "container": 6.4},
            "The rerun differs from the earlier records (margin 2 %): 4 slower, 2 equivalent",
        ),
        (
            {"bare-metal": 10.0, "container": 9.0},
            "The rerun differs from the earlier records (margin 2 %): 2 equivalent, 4 faster",
        ),
        (
            {"bare-metal": 9.8, "container": 7.84},
            "Whether the rerun agrees with the earlier records is open (margin 2 %), and at 3 % it agrees: "
            "2 equivalent, 4 undecided",
        ),
    ],
)
def test_a_rerun_agrees_where_every_number_is_within_the_margin_and_faster_is_no_agreement(
    save: Save, after: dict[str, float], sentence: str
) -> None:
    blocks(save, "before", BEFORE)
    blocks(save, "after", after)
    text = shown(save)
    assert text.startswith(sentence)
    assert "throughput over bare-metal" in text
    assert "x source=earlier" in text


def test_on_another_machine_ratios_to_bare_metal_alone_decide(save: Save) -> None:
    blocks(save, "before", BEFORE)
    blocks(save, "after", {"bare-metal": 30.0, "container": 24.0}, host="there")
    text = shown(save, elsewhere=True)
    assert text.startswith("The rerun agrees with the earlier records (margin 2 %): 2 equivalent")
    assert "3.000" in text, "its times stand in the tables"
    blocks(save, "alone", {"bare-metal": 30.0}, host="there")
    comparison = compare_rerun(save.load("before", "alone"), save.path / "alone")
    text = printed(rerun_document(comparison, further, elsewhere=True))
    assert text.startswith("Whether the rerun agrees with the earlier records is open (margin 2 %): no number")
    assert "no target was measured with bare metal" in text


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"number": 3}, "at least 5 blocks are needed"), ({"busy": 20.0}, "the CPUs were busy with other work")],
)
def test_too_few_blocks_and_disturbed_trials_leave_it_open(save: Save, changes: dict[str, float], why: str) -> None:
    blocks(save, "before", BEFORE)
    blocks(save, "after", BEFORE, **changes)  # type: ignore[arg-type]
    text = shown(save)
    assert text.startswith("Whether the rerun agrees with the earlier records is open")
    assert why in text
    assert re.search(r"\nbench reproduce closer2018 --blocks \d+  # whether it agrees\n", text)


def test_jobs_of_one_side_alone_are_in_no_number(save: Save) -> None:
    blocks(save, "before", BEFORE)
    blocks(save, "after", BEFORE)
    save("after", model="alexnet", block=0, **measured(10.0))
    assert "alexnet" not in shown(save)
    save("other", model="alexnet", block=0, **measured(10.0))
    with pytest.raises(RequestError, match="no job in common"):
        compare_rerun(save.load("before", "other"), save.path / "other")


def test_the_refusal_names_how_the_job_that_is_most_alike_differs() -> None:
    wanted = {"model": "alexnet", "batch": "8", "cpus": "2"}
    held = [{"model": "gan", "batch": "4", "cpus": "1"}, {"model": "alexnet", "batch": "8", "cpus": "1"}]
    with pytest.raises(RequestError, match=r"a\.tar\.gz has no job of this plan: .* has cpus 1 against 2$"):
        refuse_other_jobs([wanted], held, Path("a.tar.gz"))
    refuse_other_jobs([wanted, held[0]], held, Path("a.tar.gz"))
