"""Names of trials and of their files: composed here, taken apart here, and nowhere else.

``synthetic-resnet50-vm+isa-b007`` is the trial of scenario, model and arm in block 7; ``-w000`` ends the name of one in
a warm-up block, and ``vm-alternating`` is the arm of a job that takes turns. Its record is the file ``NAME.json``, its
second failed attempt ``NAME.2.json``.
"""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta
from pydantic import Field

from suite.job.job import SEQUENTIAL, Name
from suite.part import MOST_COUNTED, Count, Part

RECORD_FILES = "[!.]*.json"
"""The pattern of the files of records and attempts, without files that are still being written."""

_TRIAL_ID = r"^[A-Za-z0-9][A-Za-z0-9_.+=-]{0,239}$"
TrialId = Annotated[str, Field(pattern=_TRIAL_ID), Meta(pattern=_TRIAL_ID)]
"""The name of a trial is that of its file, and of no place elsewhere."""


class TrialKey(Part):
    """The fields that distinguish the trials of one job in a run, and the seed of their weights and data."""

    target: Name
    replica: Count = 0
    """0, or 1 for the second bare-metal trial of an A/A block."""
    ablation: TrialId | None = None
    """The one property of the target that is switched; see ``suite.job.ablations``."""
    aggressor: TrialId | None = None
    """The aggressor beside the victim; null if the other instances are idle."""
    warm_up: bool = False
    """Whether it belongs to a block before the first: run and recorded like every trial, counted in no estimate."""
    block: Count
    position: Count
    """Place in its block, from 0, in the order in which the block was run."""
    seed: Annotated[int, Meta(ge=0, lt=MOST_COUNTED)]


def arm_name(
    target: str,
    replica: int,
    ablation: str | None,
    aggressor: str | None,
    design: str = SEQUENTIAL,
) -> str:
    """Return what tells trials of one model in a block apart: ``vm``, ``bare-metal-again``, ``vm+isa-beside-disk``."""
    suffix = "-again" if replica else ""
    switched = f"+{ablation}" if ablation else ""
    beside = f"-beside-{aggressor}" if aggressor else ""
    turns = "" if design == SEQUENTIAL else f"-{design}"
    return f"{target}{suffix}{switched}{beside}{turns}"


def trial_name(scenario: str, model: str, arm: str, block: int, *, warm_up: bool) -> str:
    """Return the ``trial_id`` of a trial; ``arm`` as ``arm_name`` gives it."""
    return f"{scenario}-{model}-{arm}-{'w' if warm_up else 'b'}{block:03d}"


def instances_in(model: str) -> int:
    """Return the number of instances that the name of a job stands for: ``5-instances``."""
    return int(model.partition("-")[0])


def record_file(trial_id: str) -> str:
    return f"{trial_id}.json"


def attempt_file(trial_id: str, number: int) -> str:
    """Return the name of the file that holds a trial's failed attempt; ``number`` counts from 1."""
    return f"{trial_id}.{number}.json"


def trial_of_attempt(file_name: str) -> str:
    """Return the ``trial_id`` of an attempt's file; empty where the name is not one of an attempt."""
    return file_name.removesuffix(".json").rpartition(".")[0]


def files_of_block(block: int) -> Iterable[str]:
    """Yield the patterns of the records and attempts of one block. The warm-up blocks belong to block 0."""
    yield f"*-b{block:03d}.*json"
    if block == 0:
        yield "*-w[0-9][0-9][0-9].*json"
