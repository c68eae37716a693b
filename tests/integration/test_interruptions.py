"""A bench that is ended at some moments: a few of what ``benchmarks/interruptions.py`` and ``kills.py`` do many times.

With VIRTBENCH_INTERRUPTIONS=40 each engine gets so many of Ctrl-C, and docker and a guest, which take minutes, too.
"""

import os
import sys

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


KILLS = int(os.environ.get("VIRTBENCH_KILLS", "10"))
SEED = os.environ.get("VIRTBENCH_SEED", "16")


@pytest.mark.thorough
def test_kills_lose_nothing_tear_nothing_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """VIRTBENCH_KILLS is how many, and VIRTBENCH_SEED draws the moments."""
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    import kills

    among = {
        "--scenario": ["synthetic", "preempt", "resize", "command"],
        "--target": ["bare-metal", "container"],
        "--engine": ["runc", "podman"],
        "--command": ["sweep", "compare", "report", "web", "serve"],
    }
    words = [word for option, values in among.items() for value in values for word in (option, value)]
    bench = f"{sys.executable} {REPOSITORY / 'cli.py'}"
    options = kills.parsed([*words, "--kills", str(KILLS), "--seed", SEED, "--bench", bench])
    done, unfinished = kills.kill(options)
    wrong = "\n".join([*(str(kill) for kill in done if kill.findings), *unfinished])
    assert not wrong, wrong
    assert sum(kill.killed for kill in done) >= 0.7 * KILLS, [str(kill) for kill in done]
