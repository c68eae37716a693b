"""The alternating design: the targets of a block are open at once, and the host hands out turns to their jobs.

One computes while the others wait, so that what the neighbours of this machine do for seconds or minutes meets all of
them alike. New instances are opened for every block, since layout and placement differ from process to process.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from suite.interfaces import Instance, Meter, Observer, OpenAccount, OpenTarget, TurnScenario, TurnTaker
from suite.job.job import Alternating
from suite.plan import Trial, rounds_of
from suite.records.course import Course
from suite.records.record import Alternation, Burst


@dataclass
class _Player:
    """A trial whose job waits for its turns."""

    course: Course
    instances: Sequence[Instance]
    job: TurnTaker
    meter: Meter | None = None
    spent_s: float | None = None
    """What its meter said at the end of its turn before."""
    bursts: list[Burst] = field(default_factory=list)

    def watch(self, meter: Meter) -> None:
        self.meter, self.spent_s = meter, meter.cpu_s()

    def take_turn(self, number: int, position: int, first_s: float) -> None:
        """Let the job take its turn in a round. ``first_s`` is when the first turn of the block began."""
        before, begun_s = self._spent(), time.monotonic()
        turn = self.job.turn()
        ended_s, after = time.monotonic(), self._spent()
        burst = Burst(
            round=number,
            position=position,
            begun_s=begun_s - first_s,
            ended_s=ended_s - first_s,
            cpu_s=_between(before, after),
            waiting_cpu_s=_between(self.spent_s, before),
            **vars(turn),
        )
        self.bursts.append(burst)
        self.spent_s = after

    def _spent(self) -> float | None:
        return self.meter.cpu_s() if self.meter else None


@dataclass(frozen=True)
class Rounds:
    """Measures the trials of a block in turns."""

    scenario: TurnScenario
    open_target: OpenTarget
    open_account: OpenAccount
    observer: Observer

    def measured(self, trials: Sequence[Trial], turns: Alternating, begin: Callable[[Trial], Course]) -> list[Course]:
        """Return the courses of the trials, in their order; ``begin`` makes that of one.

        A job that fails is ended, and the others go on. At the end, and by Ctrl-C, every target is closed.
        """
        begun_s = time.monotonic()
        courses, players = [], []
        with ExitStack() as stack:
            for trial in trials:
                courses.append(course := begin(trial))
                with course.failing():
                    players.append(self._ready(course, stack))
            if players:
                self._play(players, turns.rounds)
                self.observer.phase("closing")
        block_s = time.monotonic() - begun_s
        for player in players:
            if player.bursts:
                player.course.alternation = Alternation(instances=len(trials), block_s=block_s, bursts=player.bursts)
        return courses

    def _ready(self, course: Course, stack: ExitStack) -> _Player:
        """Open the target of a trial, and bring its job to its measured steps. The stack closes it."""
        trial = course.trial
        self.observer.phase("opening", trial.target)
        # What goes wrong when the target is closed, which is after all turns, is this trial's failure, too.
        stack.enter_context(course.failing())
        instances = stack.enter_context(self.open_target(trial))
        course.opened(instances)
        job = self.scenario.turn_taker(trial, instances, self.observer)
        stack.callback(job.kill)
        job.begin()
        return _Player(course, instances, job)

    def _play(self, players: Sequence[_Player], rounds: int) -> None:
        """Hand out all turns, and end the jobs."""
        by_trial = {player.course.trial.trial_id: player for player in players}
        trials = [player.course.trial for player in players]
        account = self.open_account(trials[0], [each for player in players for each in player.instances])
        with account:
            for player in players:
                player.watch(account.meter(player.instances))
            first_s = time.monotonic()
            for number, order in enumerate(rounds_of(trials)):
                self.observer.phase("round", f"{number + 1} of {rounds}")  # all jobs wait
                for position, trial in enumerate(order):
                    player = by_trial[trial.trial_id]
                    if player.course.failure is None:
                        with player.course.failing():
                            player.take_turn(number, position, first_s)
        for player in players:
            player.course.account = account
            if player.course.failure is None:
                with player.course.failing():
                    player.course.measurement = player.job.end()
                    player.course.check()


def _between(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)
