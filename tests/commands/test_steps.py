"""What is said, before they begin, of the blocks that a difference takes."""

import pytest

from commands.run.steps import announcement
from suite.plan import Detection

PLANNED = Detection(
    difference=0.02,
    needed=34,
    blocks=34,
    detectable=0.0199,
    source="pilot",
    measured=10,
    ratio="resnet50 on vm",
    deviation=0.055,
)


def test_the_blocks_their_time_and_the_reason_are_announced() -> None:
    assert announcement(PLANNED, 4200) == (
        "about 34 blocks in all, 70 min more, detect a difference of 2 % with a chance of 80 % "
        "(pilot of 10 blocks: the standard deviation of resnet50 on vm is 5.5 % from block to block)"
    )
    assert announcement(PLANNED, None).startswith("about 34 blocks in all detect")


@pytest.mark.parametrize(("needed", "takes"), [(340, "takes about 340 blocks"), (None, "takes more blocks than can")])
def test_what_the_most_blocks_detect_is_said_where_it_takes_more(needed: int | None, takes: str) -> None:
    text = announcement(PLANNED.model_copy(update={"needed": needed, "blocks": 100, "detectable": 0.037}), 60)
    assert takes in text
    assert "100 blocks, 60 s more, detect 3.7 %: give more with --max-blocks, or a larger --detect" in text
