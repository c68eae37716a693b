"""``kill -9`` at random moments: ten of what ``benchmarks/kills.py`` does a hundred times on every target."""

import random
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.integration.machine import require_root_and_image

pytestmark = [pytest.mark.integration, pytest.mark.thorough]
REPOSITORY = Path(__file__).parents[2]
SHORTEST_RUN_S = 5.0
"""Later, many a run would have ended before its moment came."""


@pytest.mark.timeout(1200)
def test_ten_kills_lose_nothing_tear_nothing_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_root_and_image()
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
