"""Hand the blocks of a sweep to executors as these become free: machines, or jobs of a scheduler."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from suite.errors import BenchError, RequestError
from suite.sweep.file_transfer import ENDED, TransferError

LOSSES_ALLOWED = 3
"""A block that was lost so often, wherever it ran, is given up."""
FAILURES_ALLOWED = 2
"""An executor that has failed so often in a row gets no more blocks."""


class BlockProcess(Protocol):
    """A block that runs on another machine, and sends its records back as lines."""

    @property
    def where(self) -> str:
        """Where it runs, if the name of its executor does not already say so; else empty."""

    def lines(self) -> Generator[str, None, None]:
        """Yield what it sends, ``ENDED`` last; fewer lines if it is lost.

        Raises BenchError if it will never begin, or cannot be followed any more.
        """

    def stop(self) -> None:
        """End it in order, or cease to follow one that outlives this process. Called from another thread."""

    def close(self) -> None:
        """Release what it holds, once no more lines are read."""

    def lost(self) -> BenchError:
        """Return why it ended before it had sent everything. Called after ``close``."""


OpenBlock = Callable[[int], BlockProcess]
"""Starts a block, or takes up one that is running already. Raises BenchError."""


@dataclass
class Executor:
    """Runs one block at a time: on a machine, or as a job of a scheduler."""

    name: str
    open: OpenBlock
    receive: Callable[[int, str], None]
    """Takes the block and every line that comes back. Called from the thread that runs the block."""
    _stopped: bool = False
    _process: BlockProcess | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def run(self, block: int) -> None:
        """Run the block to its end and receive its records on the way. Raises BenchError if it was not completed."""
        process = self.open(block)
        with self._guard:
            self._process = process
            stopped = self._stopped
        if stopped:  # while it was being opened
            process.stop()
        try:
            with closing(process.lines()) as lines:
                for line in lines:
                    if line == ENDED:
                        return
                    self._receive(block, process, line)
        finally:
            process.close()
        raise process.lost()

    def _receive(self, block: int, process: BlockProcess, line: str) -> None:
        try:
            self.receive(block, line)
        except (RequestError, TransferError) as error:
            if not process.where:
                raise
            raise type(error)(f"{process.where}: {error.message}", remedy=error.remedy) from error

    def stop(self) -> None:
        """Stop what runs now; ``run`` then raises. Called from another thread."""
        with self._guard:
            self._stopped = True
            process = self._process
        if process:
            process.stop()


class Dispatcher:
    """The blocks that are left, and a thread for each executor that takes them."""

    def __init__(
        self,
        executors: Sequence[Executor],
        blocks: Iterable[int],
        note: Callable[[str], None],
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """``stop_requested`` returns whether to begin no further block; it is called before each."""
        self._stop_requested = stop_requested
        self._executors = executors
        self._left = deque(blocks)
        self._note = note
        self._running: dict[str, int] = {}
        self._losses: Counter[int] = Counter()
        self._stopped = False
        self._attended = 0
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()

    def run(self) -> None:
        """Run until every block has ended or is given up.

        An exception in here (Ctrl-C) stops the executors in order, waits for them, and is raised again.
        """
        try:
            for executor in self._executors:
                thread = threading.Thread(target=self._attend, args=(executor,), name=executor.name)
                self._threads.append(thread)
                self._threads[-1].start()
            self._wait()
        except BaseException:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            for executor in self._executors:
                executor.stop()
            self._wait()
            raise

    def _wait(self) -> None:
        # Not by Thread.join: one that a signal has interrupted takes the thread for ended (CPython, bpo-45274).
        # Ctrl-C may come between two starts: those that were started are waited for.
        # A signal that comes just before the wait begins does not end it, and is heard after it: it is kept short.
        with self._changed:
            while self._attended < sum(thread.ident is not None for thread in self._threads):
                self._changed.wait(timeout=1.0)

    def _attend(self, executor: Executor) -> None:
        try:
            self._serve(executor)
        finally:
            with self._changed:
                self._attended += 1
                self._running.pop(executor.name, None)
                self._changed.notify_all()

    def _serve(self, executor: Executor) -> None:
        failures = 0
        while failures < FAILURES_ALLOWED and (block := self._take(executor)) is not None:
            self._note(f"block {block}: to {executor.name}")
            try:
                executor.run(block)
            except RequestError as error:  # it would refuse the next one, too
                failures = FAILURES_ALLOWED
                self._return(executor, back=True)
                self._note(f"block {block}: refused by {executor.name}, which gets no more ({error.with_remedy})")
            except BenchError as error:
                failures += 1
                self._losses[block] += 1
                self._return(executor, back=self._losses[block] < LOSSES_ALLOWED)
                if not self._stopped:
                    outcome = "gets no more" if failures == FAILURES_ALLOWED else "is tried again"
                    reason = f"{error.message}; {error.remedy or ''}"
                    self._note(f"block {block}: lost on {executor.name}, which {outcome} ({reason})")
            else:
                failures = 0
                self._note(f"block {block}: ended on {executor.name}")
                self._return(executor)

    def _take(self, executor: Executor) -> int | None:
        """Return the next block, None if there are no more; wait while one that runs elsewhere could still be lost."""
        with self._changed:
            while not self._left and self._running and not self._stopped:
                self._changed.wait()
            if self._stopped or not self._left or self._stop_requested():
                return None
            block = self._left.popleft()
            self._running[executor.name] = block
            return block

    def _return(self, executor: Executor, *, back: bool = False) -> None:
        """Take note that the executor's block does not run any more; with ``back`` it has to run somewhere else."""
        with self._changed:
            block = self._running.pop(executor.name)
            if back:
                self._left.append(block)
            self._changed.notify_all()
