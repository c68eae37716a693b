"""A victim beside an aggressor on this machine, what such a trial says of it, and what ends it."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import IO, Any

import pytest

from scenarios.shared import Shared
from suite.errors import MeasurementError
from suite.interfaces import Instance, Process
from suite.job.profiles import Sizes
from suite.job.sharing import Sharing
from suite.plan import Trial
from suite.registries import AGGRESSORS
from tests.scenarios.conftest import HereNode, RecordingObserver, ScriptedProcess, fails
from worker.aggressors.loads import running
from worker.probes.probe import ProbeError

TINY = Sizes(batch=2, image_px=28, channels=1, warmup_steps=1, steps=2)
ENDLESS = TINY.model_copy(update={"steps": 100_000})
PROBE = {"threads": 1, "directory": None, "size": "smoke", "device": "cpu"}


def planned(trial: Trial, aggressor: str | None, victim: Sizes = TINY) -> Trial:
    sharing = Sharing(aggressors=(aggressor or "cpu",), workloads={"gan": TINY})
    shared = trial.with_job(scenario="shared", model="gan", sharing=sharing, sizes=victim)
    return shared.model_copy(update={"aggressor": aggressor})


@pytest.fixture
def there() -> Iterator[HereNode]:
    """The aggressor's instance."""
    with closing(HereNode(name="there")) as node:
        yield node


@dataclass
class Watched(HereNode):
    """A place of the victim, where something is done right after the launch."""

    act: Callable[[], None] = lambda: None

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"", **_: Any) -> Process:
        process = super().start(argv, stdin=stdin)
        self.act()
        return process


@pytest.fixture
def watched() -> Iterator[Watched]:
    with closing(Watched()) as node:
        yield node


@pytest.fixture
def measure(trial: Trial, there: HereNode, observer: RecordingObserver) -> Callable[..., Any]:
    """``measure(node, "cpu")``: the victim on the node beside an aggressor there, or alone."""

    def measured(node: HereNode, aggressor: str | None, victim: Sizes = TINY, at: HereNode = there) -> Any:
        instances = [Instance(node), Instance(at)]
        return Shared().measure(planned(trial, aggressor, victim), instances, observer, nullcontext())

    return measured


def test_the_steps_of_a_training_aggressor_enclose_the_victim(
    measure: Any, here: HereNode, there: HereNode, observer: RecordingObserver
) -> None:
    measured = measure(here, "gan")
    (one,) = measured.aggressors
    done = one.aggression
    assert done.begun_s < 0 < measured.elapsed_s <= done.ended_s
    assert done.unit == "images"
    assert 2 * done.steps[-1] == done.work[-1]  # two images each
    assert sorted(done.heard_s) == done.heard_s
    assert done.before_per_s > 0
    assert one.environment.threads == 1
    assert len(measured.weights_sha256) == len(measured.drawn_sha256) == 64, "the victim's"
    assert not any(process.running() for process in there.processes)
    names = [name for name, _ in observer.phases]
    assert names.index("aggressor") < names.index("launching"), "the victim is launched when the aggressor measures"


def test_a_victim_alone_has_an_idle_instance_beside_it(measure: Any, here: HereNode, there: HereNode) -> None:
    measured = measure(here, None)
    (one,) = measured.aggressors
    assert one.aggression is None
    assert one.environment.cpus
    assert there.processes == []


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGKILL, "the aggressor cpu in instance 1 .*killed"), (signal.SIGTERM, "it ended before the victim did")],
)
def test_an_aggressor_that_is_ended_in_mid_run_ends_the_trial_at_once(
    number: int, told: str, measure: Any, watched: Watched, there: HereNode
) -> None:
    watched.act = lambda: there.processes[0].popen.send_signal(number)
    with fails(MeasurementError, "aggressor", told) as caught:
        measure(watched, "cpu", ENDLESS)
    assert caught.value.remedy
    assert not any(process.running() for process in watched.processes)


def test_an_aggressor_that_cannot_work_says_why_before_the_victim_is_launched(measure: Any, here: HereNode) -> None:
    with fails(MeasurementError, "aggressor", r"no data directory|fio is not installed"):
        measure(here, "disk")
    assert here.processes == []


@dataclass
class Mute(HereNode):
    """Attests itself, and what is started there says nothing for ever."""

    mute: ScriptedProcess = field(default_factory=lambda: ScriptedProcess([None]))

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"", **_: Any) -> Process:
        del argv, stdin
        return self.mute


def test_an_aggressor_that_says_nothing_is_given_up(measure: Any, here: HereNode) -> None:
    mute = Mute(name="there")
    with fails(MeasurementError, "aggressor", "it had not ended after 240 s: it was 'launching'"):
        measure(here, "cpu", at=mute)
    assert mute.mute.killed
    assert here.processes == []


def test_a_victim_that_fails_by_itself_is_not_blamed_on_the_aggressor(
    measure: Any, watched: Watched, there: HereNode
) -> None:
    watched.act = lambda: watched.processes[-1].popen.kill()
    with fails(MeasurementError, "killed"):
        measure(watched, "cpu", ENDLESS)
    assert not any(process.running() for process in there.processes)


def test_a_victim_that_starves_is_given_up_with_its_phase(measure: Any, there: HereNode) -> None:
    with fails(MeasurementError, "timeout", "had not ended after 120 s"):
        measure(Mute(), "cpu")
    assert not any(process.running() for process in there.processes)


@pytest.mark.parametrize("name", list(AGGRESSORS))
def test_an_aggressor_works_until_it_is_told_to_stop(name: str, here: HereNode, tmp_path: Any) -> None:
    request = {"aggressor": {**PROBE, "member": AGGRESSORS.place(name), "directory": str(tmp_path)}}
    interpreter, path = here.python
    argv = ["env", f"PYTHONPATH={path}", interpreter, "-m", "worker", "--aggressor"]
    events = map(json.loads, here.start(argv, stdin=json.dumps(request).encode()).lines(600))
    said = []
    for told in events:
        said.append(told)
        if told["event"] == "error":
            pytest.skip(told["message"])
        # On a busy machine nothing has moved yet when it first tells of its progress.
        if told["event"] == "progress" and told["work"] != 0:
            os.kill(said[0]["pid"], signal.SIGTERM)
            break
    assert said[0]["pid"] == here.processes[0].popen.pid
    said += events
    names = [each["event"] for each in said]
    assert names[:3] == ["started", "environment", "measuring"]
    assert names[-2:] == ["measured", "done"]
    steps = [each["steps"] for each in said if each["event"] in ("progress", "measured")]
    assert steps == sorted(steps)
    assert said[-2]["work"] is None or said[-2]["work"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_ends_by_itself_is_a_failure_with_its_words() -> None:
    with running(["sh", "-c", "echo no more >&2; exit 3"], ("wchar",)) as load:
        steps = (load.step() for _ in range(240))  # a step takes no note of what ends after it
        with pytest.raises(ProbeError, match="sh has ended by itself with status 3: no more"):
            list(steps)
