"""A bench that is ended at some moments: a few of what ``benchmarks/interruptions.py`` and ``kills.py`` do many times.

With VIRTBENCH_INTERRUPTIONS=40 each engine gets so many of Ctrl-C, and docker and a guest, which take minutes, too.
"""

import os
import random
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.integration.bench import REPOSITORY
from tests.integration.machine import require

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(3600)]
COUNT = int(os.environ.get("VIRTBENCH_INTERRUPTIONS", "4"))
ASKED = pytest.mark.skipif("VIRTBENCH_INTERRUPTIONS" not in os.environ, reason="see VIRTBENCH_INTERRUPTIONS")


@pytest.mark.parametrize(
    "engine",
    [
        "runc",
        pytest.param("podman", marks=pytest.mark.thorough),
        pytest.param("docker", marks=ASKED),
        pytest.param(None, marks=ASKED, id="guest"),
    ],
)
def test_ctrl_c_in_a_terminal_leaves_nothing_at_any_moment(
    engine: str | None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Press the key, half of the times while the target is being closed."""
    if engine == "docker":
        request.getfixturevalue("docker")
    elif engine:
        require("engine", engine)
    else:
        require("target", "vm")
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    import interruptions

    words = interruptions.words_of("container" if engine else "vm", engine or "runc")
    found = interruptions.interruptions(words, COUNT, together=4)
    assert [str(each) for each in found if each.findings] == []
    assert sum(each.pressed for each in found) >= COUNT // 2, [str(each) for each in found]


SHORTEST_RUN_S = 5.0
"""Later, many a run would have ended before its moment came."""


@pytest.mark.thorough
def test_ten_kills_lose_nothing_tear_nothing_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    import kills
    from parts.kills_machine import Family
    from parts.kills_runs import drawn, settings

    chance = random.Random(16)
    found = settings(tmp_path, ["generating", "synthetic", "distributed"], ["bare-metal", "container"])
    among = [each for each in found if (each.scenario, each.target) != ("distributed", "container")]
    among = [each for each in among if each.engine in (None, "runc")]
    for setting in among:
        setting.span_s = SHORTEST_RUN_S
    with Family() as family:
        killer = kills.Killer([sys.executable, str(REPOSITORY / "cli.py")], chance, family)
        done = [killer.kill_once(*pair) for pair in islice(drawn(among, chance), 10)]
        unfinished = [wrong for setting in among if setting.out.exists() for wrong in killer.complete(setting)]
    wrong = "\n".join([*(str(kill) for kill in done if kill.findings), *unfinished])
    assert not wrong, wrong
    assert sum(kill.killed for kill in done) >= 8, [str(kill) for kill in done]
