"""Every block ends somewhere, and what is lost goes to another executor; its far side is a real process, here."""

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from commands.sweep.backends.dispatch import FAILURES_ALLOWED, LOSSES_ALLOWED, BlockProcess, Dispatcher, Executor
from provisioning.batch.remote import StreamProcess
from suite.errors import BenchError, MeasurementError, RequestError
from suite.sweep.file_transfer import ENDED, GIVEN, TransferError, encode, receive_file


def never(block: int) -> BlockProcess:
    raise NotImplementedError(block)


class FakeExecutor(Executor):
    """Ends every block at once, but for the first ``failing`` of them, which it loses."""

    def __init__(self, name: str, failing: int = 0) -> None:
        super().__init__(name, never, print)
        self.failing = failing
        self.done: list[int] = []
        self.lost: list[int] = []

    def run(self, block: int) -> None:
        if len(self.lost) < self.failing:
            self.lost.append(block)
            raise MeasurementError("the connection broke", remedy="look at the cable")
        self.done.append(block)

    def stop(self) -> None:
        """Nothing runs for long."""


class Waiting(Executor):
    """Holds its block until it is stopped."""

    def __init__(self) -> None:
        super().__init__("slow", never, print)
        self.began, self.stopped, self.ended = threading.Event(), threading.Event(), threading.Event()

    def run(self, block: int) -> None:
        del block
        self.began.set()
        self.stopped.wait(60)
        time.sleep(0.3)  # to end in order takes a while
        self.ended.set()
        raise MeasurementError("stopped")

    def stop(self) -> None:
        self.stopped.set()


def test_a_block_that_is_lost_goes_to_another_executor_and_it_is_said() -> None:
    said: list[str] = []
    broken, whole = FakeExecutor("broken", failing=99), FakeExecutor("whole")
    Dispatcher([broken, whole], range(6), said.append).run()
    assert sorted(whole.done) == list(range(6))
    assert len(broken.lost) <= FAILURES_ALLOWED
    if broken.lost:  # threads: the other may have taken all before
        assert any("lost on broken" in line and "the connection broke" in line for line in said)


def test_an_executor_that_failed_once_is_tried_again_and_one_that_always_fails_gets_no_more() -> None:
    said: list[str] = []
    once, always = FakeExecutor("a", failing=1), FakeExecutor("b", failing=99)
    Dispatcher([once], [7], said.append).run()
    assert (once.lost, once.done) == ([7], [7])
    assert not any("gets no more" in line for line in said)
    Dispatcher([always], [3, 1, 2], said.append).run()
    assert any("gets no more" in line for line in said)


def test_an_executor_that_refuses_is_asked_once() -> None:
    said: list[str] = []
    refusing, whole = FakeExecutor("unequal"), FakeExecutor("whole")
    refusing.run = refuse = Mock(side_effect=RequestError("kernel 6.1 and 6.2"))  # type: ignore[method-assign]
    Dispatcher([refusing, whole], range(6), said.append).run()
    assert sorted(whole.done) == list(range(6))
    assert refuse.call_count <= 1
    assert not refuse.called or any("refused by unequal" in line and "kernel 6.1 and 6.2" in line for line in said)


def test_a_block_that_every_executor_loses_is_given_up_and_the_others_run_once() -> None:
    class Picky(FakeExecutor):
        def run(self, block: int) -> None:
            if block == 1:
                self.lost.append(block)
                raise MeasurementError("this one never")
            self.done.append(block)

    places = [Picky("a"), Picky("b"), Picky("c")]
    Dispatcher(places, range(10), lambda _text: None).run()
    assert sum(len(place.lost) for place in places) == LOSSES_ALLOWED
    assert sorted(block for place in places for block in place.done) == [0, *range(2, 10)]


def test_an_interruption_stops_the_places_and_waits_for_them() -> None:
    place = Waiting()

    def interrupt() -> None:
        assert place.began.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    # Whoever starts the tests in the background may have told them to ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            Dispatcher([place], [0, 1], lambda _text: None).run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert place.stopped.is_set()
    assert place.ended.is_set()


TEXT = 'plan of {}: "ü \\n"\n'
FAR = """
import sys
{first}
given = iter(sys.stdin.readline, {given!r} + "\\n")
for line in given:
    sys.stdout.write(line.replace("plan.toml", "cell/trials/t-b" + sys.argv[-1] + ".json"))
    sys.stdout.flush()
{then}
"""


def void(_result: object) -> None:
    """What a callback that returns nothing does with what it got."""


def far_side(tmp_path: Path, then: str, *words: str, program: str = sys.executable, first: str = "") -> Executor:
    argv = [program, "-c", FAR.format(given=GIVEN, then=then, first=first), *words]
    log = tmp_path / "logs/far.log"
    return Executor(
        name="far",
        open=lambda block: StreamProcess([*argv, str(block)], [encode("plan.toml", TEXT.format(block))], log),
        receive=lambda _block, line: void(receive_file(tmp_path / "out", line)),
    )


def test_what_the_far_side_finishes_arrives_and_its_words_are_kept(tmp_path: Path) -> None:
    far = far_side(tmp_path, f"print('hello', file=sys.stderr); print({ENDED!r})")
    far.run(3)
    far.run(4)
    for block in (3, 4):
        assert (tmp_path / f"out/cell/trials/t-b{block}.json").read_text() == TEXT.format(block)
    assert (tmp_path / "logs/far.log").read_text() == "hello\nhello\n"


def test_a_far_side_that_dies_is_told_with_its_last_words_and_what_arrived_is_kept(tmp_path: Path) -> None:
    far = far_side(tmp_path, "sys.exit('no image is built')")
    with pytest.raises(MeasurementError, match="no image is built") as raised:
        far.run(0)
    assert str(tmp_path / "logs/far.log") in str(raised.value.remedy)
    assert (tmp_path / "out/cell/trials/t-b0.json").exists()


REFUSES = "print('bench: n2 is unequal to n1', '  what to do: nothing', sep=chr(10), file=sys.stderr); sys.exit(2)"


@pytest.mark.parametrize(
    ("then", "program", "error", "said"),
    [
        (REFUSES, sys.executable, RequestError, "bench: n2 is unequal to n1"),
        ("print('Welcome to Debian', flush=True); sys.stdin.read()", sys.executable, TransferError, "Welcome"),
        ("", "no-such-ssh", RequestError, "no-such-ssh is not installed"),
    ],
    ids=["refused in its own words", "what is no file ends it", "no program"],
)
def test_a_far_side_that_does_not_do_its_part_is_told(
    then: str, program: str, error: type[BenchError], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        far_side(tmp_path, then, program=program).run(0)


def test_to_stop_closes_the_far_sides_input_and_waits_for_its_end(tmp_path: Path) -> None:
    far = far_side(tmp_path, "sys.stdin.read(); open(sys.argv[1], 'w').write('in order')", str(tmp_path / "left"))
    arrived = tmp_path / "out/cell/trials/t-b0.json"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(far.run, 0)
        deadline_s = time.monotonic() + 60
        while not arrived.exists() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        far.stop()
        assert isinstance(running.exception(60), MeasurementError)
    assert (tmp_path / "left").read_text() == "in order"


@pytest.mark.parametrize("line_break", ["\n", ""])
def test_what_a_login_shell_prints_before_a_block_goes_into_the_log(line_break: str, tmp_path: Path) -> None:
    far = far_side(tmp_path, f"print({ENDED!r})", first=f"print('Welcome to gpu1', end={line_break!r}, flush=True)")
    far.run(3)
    assert (tmp_path / "out/cell/trials/t-b3.json").read_text() == TEXT.format(3)
    if line_break:
        assert (tmp_path / "logs/far.log").read_text() == "Welcome to gpu1\n"


def test_what_a_forced_command_prints_is_shown_where_no_block_comes(tmp_path: Path) -> None:
    refusal = 'Please login as the user "ubuntu" rather than the user "root".'
    with pytest.raises(MeasurementError, match=refusal):
        far_side(tmp_path, "", first=f"print({refusal!r}); print(); sys.exit(142)").run(0)
    assert refusal in (tmp_path / "logs/far.log").read_text()
