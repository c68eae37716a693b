"""Aggressors: launched beside a victim, heard while it runs, and told to stop when it has ended."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from scenarios.aggressor_events import Rampage
from scenarios.events import Transcript
from scenarios.failure import failure_of_exit
from scenarios.job import merged_environment
from suite.errors import BenchError, CommandError, MeasurementError
from suite.interfaces import Node, Process
from suite.records.record import Aggression, Aggressor, Environment, Usage

ENDS_WITHIN_S = 600.0
"""After it was told to stop: one step, on an emulated CPU."""


@dataclass
class Assault:
    """One aggressor, from its launch to what it said."""

    name: str
    node: Node
    argv: list[str]
    """That launches the worker; it attests itself by them, too."""
    spec: bytes
    attested: Mapping[str, object]
    memory_bytes: int
    settled: threading.Event = field(default_factory=threading.Event)
    """Set when the victim can be launched, and when there is no sense in waiting for that."""
    stopping: bool = False
    process: Process | None = None
    rampage: Rampage = field(init=False)

    def __post_init__(self) -> None:
        self.rampage = Rampage(self.settled.set)

    def launch(self) -> None:
        self.rampage.begin()
        self.process = self.node.start([*self.argv, "--aggressor"], stdin=self.spec)

    def listen(self, timeout_s: float) -> None:
        """Hear it to its end. Raises MeasurementError of kind ``aggressor`` unless it was told to end."""
        process = self.process
        if process is None:
            raise MeasurementError(f"{self.name} was not launched", kind="plan")
        try:
            for line in process.lines(timeout_s):
                self.rampage.hear(line)
            status = process.wait(ENDS_WITHIN_S)
            if status or "done" not in self.rampage.events:
                raise failure_of_exit(status, self.rampage.phase, self.memory_bytes)
            if not self.stopping:
                raise MeasurementError("it ended before the victim did", kind="aggressor")
        except BenchError as error:
            raise self._failure(error, process, timeout_s) from error
        finally:
            process.kill()

    def stop(self) -> None:
        """By a signal that is sent inside: what goes to the client of an engine or to ssh does not get there."""
        self.stopping = True
        pid = self.rampage.events["started"].fields.get("pid")
        if not isinstance(pid, int) or pid < 2:
            raise MeasurementError(f"{self.name} says that its process is {pid!r}", kind="protocol", command=self.argv)
        # One that has ended meanwhile is not there any more: listening to it says why.
        self.node.run(["kill", "-TERM", str(pid)], check=False)

    def kill(self) -> None:
        if self.process:
            self.process.kill()

    def environment(self) -> Environment:
        said = self.rampage.events["environment"].fields if "environment" in self.rampage.events else {}
        return merged_environment(self.attested, said, self.node.facts)

    def record(self, victim: Transcript, elapsed_s: float) -> Aggressor:
        """Raises MeasurementError where its measured steps do not enclose the victim."""
        events, told, launched_s = self.rampage.events, self.rampage.told, victim.begun_s
        begun_s, ended_s = (events[name].arrived_s - launched_s for name in ("measuring", "measured"))
        if begun_s >= 0 or ended_s < elapsed_s:
            raise MeasurementError(
                f"{self.name} took its measured steps from {begun_s:.2f} s to {ended_s:.2f} s after the launch of the "
                f"victim, which ended at {elapsed_s:.2f} s: it was not beside it all the time",
                kind="aggressor",
                command=self.argv,
            )
        span = [victim.events[name].arrived_s for name in ("measuring", "measured")]
        aggression = Aggression(
            unit=str(events["measuring"].fields.get("unit")),
            begun_s=begun_s,
            ended_s=ended_s,
            heard_s=[each.arrived_s - launched_s for each in told],
            steps=[each.steps for each in told],
            work=[each.work for each in told],
            before_per_s=self.rampage.per_s(told[0].arrived_s, launched_s),
            beside_per_s=self.rampage.per_s(*span),
            usage=Usage.model_validate(events["done"].fields.get("usage") or {}),
        )
        return Aggressor(environment=self.environment(), aggression=aggression)

    def _failure(self, error: BenchError, process: Process, timeout_s: float) -> MeasurementError:
        with suppress(CommandError):
            process.wait(1.0)
        late = isinstance(error, CommandError) and error.returncode is None
        why = f"it had not ended after {timeout_s:g} s: it was {self.rampage.phase!r}" if late else error.message
        return MeasurementError(
            f"{self.name}: {why}",
            kind="aggressor",
            command=[*self.argv, "--aggressor"],
            output_tail=process.output_tail(),
            remedy=error.remedy or "the trial does not count as one beside an aggressor: run it again",
        )


@dataclass
class Pack:
    """All aggressors of a trial, while they are at it."""

    assaults: Sequence[Assault]
    futures: "list[Future[None]]" = field(default_factory=list)
    victim: Process | None = None

    def wait_until_ready(self, timeout_s: float) -> None:
        """Until every one is in its measured steps. Raises MeasurementError when one does not get there."""
        deadline = time.monotonic() + timeout_s
        for each in self.assaults:
            each.settled.wait(max(0.0, deadline - time.monotonic()))
            self.check()
            if not each.settled.is_set():
                raise MeasurementError(
                    f"{each.name} was not ready after {timeout_s:g} s: it was {each.rampage.phase!r}",
                    kind="aggressor",
                    command=each.argv,
                    remedy="allow more with --trial-timeout",
                )

    def watch(self, victim: Process) -> None:
        """From now on the victim is ended when an aggressor is: what it would still measure counts for nothing."""
        self.victim = victim
        if any(future.done() for future in self.futures):
            victim.kill()

    def check(self) -> None:
        """Raises the failure of the first that has failed."""
        for future in self.futures:
            if future.done() and (error := future.exception()):
                raise error

    def stop(self) -> None:
        """Tell all to stop and hear them to their ends. Raises MeasurementError when one has failed."""
        self.check()
        for each in self.assaults:
            each.stop()
        deadline = time.monotonic() + ENDS_WITHIN_S
        for each, future in zip(self.assaults, self.futures, strict=True):
            try:
                future.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise MeasurementError(
                    f"{each.name} did not stop within {ENDS_WITHIN_S:g} s of being told", kind="aggressor"
                ) from None

    def ended(self, each: Assault) -> None:
        each.settled.set()
        if self.victim and not each.stopping:
            self.victim.kill()


@contextmanager
def unleashed(assaults: Sequence[Assault], timeout_s: float) -> Iterator[Pack]:
    """Launch all and listen to each in a thread of its own; at the end none is left. Each may live ``timeout_s``."""
    pack = Pack(assaults)
    with ThreadPoolExecutor(len(assaults)) as pool:
        try:
            for each in assaults:
                each.launch()
                future = pool.submit(each.listen, timeout_s)
                future.add_done_callback(lambda _, each=each: pack.ended(each))  # type: ignore[misc]
                pack.futures.append(future)
            yield pack
        finally:
            # Also on Ctrl-C: the threads end with what they listen to.
            for each in assaults:
                each.kill()
