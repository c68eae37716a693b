"""The one loop: for each trial open the target, measure, close, record.

In the alternating design the targets of a block are open at once, and the host hands out turns to their jobs. One
computes while the others wait, so that what the neighbours of this machine do for seconds or minutes meets all of them
alike. New instances are opened for every block, since layout and placement differ from process to process.
"""

import datetime
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

from suite.errors import MeasurementError
from suite.interfaces import Instance, Meter, Observer, OpenAccount, OpenTarget, Scenario, TurnScenario, TurnTaker
from suite.interruption import uninterrupted, unsuspended
from suite.job.job import Alternating
from suite.plan import Plan, Trial, rounds_of, together
from suite.records.course import Course
from suite.records.environment import Environment
from suite.records.record import Alternation, Burst, TrialRecord
from suite.results.store import TRIALS, Run, StoreError
from suite.trial_names import record_file


@dataclass
class _Player:
    course: Course
    instances: Sequence[Instance]
    job: TurnTaker
    meter: Meter | None = None
    spent_s: float | None = None
    """What its meter said at the end of its turn before."""
    bursts: list[Burst] = field(default_factory=list)

    @property
    def plays_on(self) -> bool:
        return self.course.failure is None and not self.job.finished

    def take_turn(self, number: int, position: int, first_s: float) -> None:
        """Let the job take its turn in a round. ``first_s`` is when the first turn of the block began."""
        before = self._spent()
        begun_s = time.monotonic()
        turn = self.job.turn()
        ended_s = time.monotonic()
        after = self._spent()
        burst = Burst(
            round=number,
            position=position,
            begun_s=begun_s - first_s,
            ended_s=ended_s - first_s,
            cpu_s=_between(before, after),
            waiting_cpu_s=_between(self.spent_s, before),
            **asdict(turn),
        )
        self.bursts.append(burst)
        self.spent_s = after

    def _spent(self) -> float | None:
        if self.meter:
            return self.meter.cpu_s()
        return None


@dataclass(frozen=True)
class Loop:
    """Runs the trials of a plan. ``host`` returns the environment of this machine."""

    scenario: Scenario
    open_target: OpenTarget
    store: Run
    observer: Observer
    host: Callable[[], Environment]
    open_account: OpenAccount
    fixes_steps: bool = True
    """Whether one trial chooses the steps of its job for all; False if other machines, too, run blocks of it."""

    def run(self, plan: Plan, block: int | None = None) -> list[TrialRecord]:
        """Run what the store does not hold yet, of one block or of all; every trial is saved before the next begins.

        A trial that fails is a record and the run goes on. Trials that take turns are saved together, and made again
        together if one of them is due: their bursts are held against each other. Those made again take the place of
        those before unless fewer are ok. Returns the records made now. What ends the run: Ctrl-C, and a store that
        cannot be written.
        """
        plan = self.store.begin(plan)
        finished = set(self.store.finished())
        trials = list(plan.trials() if block is None else plan.trials_of(block))
        numbers = {trial.trial_id: number for number, trial in enumerate(trials, start=1)}
        due = []
        for group in together(trials):
            identities = {trial.trial_id for trial in group}
            if identities - finished:
                due.append(group)
        skipped = len(trials) - sum(map(len, due))
        # Whoever runs block after block counts over all of them.
        if block is None and skipped:
            self.observer.note(f"{skipped} of {len(trials)} trials are there already and are kept")
        records = []
        models_bytes = 0
        for group in due:
            self.store.demand_space(models_bytes)
            with unsuspended() as continued_s:
                current = [self._with_steps_of(plan, trial) for trial in group]
                courses = self._courses(current, lambda trial: numbers[trial.trial_id], len(trials))
            for course in courses:
                course.check_pauses(continued_s)
            plan = self._fixed_steps(plan, courses)
            models_bytes = max(models_bytes, *(course.models_bytes for course in courses))
            records += self._recorded(courses)
        return records

    def _with_steps_of(self, plan: Plan, trial: Trial) -> Trial:
        """Return the trial with the steps that one before it has fixed, or as the one that fixes them."""
        sizes = plan.sizes_of(trial.job)
        if sizes is None:
            return trial
        fixes = self.fixes_steps and sizes.least_s is not None and sizes.epochs is None
        return trial.with_job(sizes=sizes).model_copy(update={"fixes_steps": fixes})

    def _fixed_steps(self, plan: Plan, courses: Sequence[Course]) -> Plan:
        """Store the steps that a trial has fixed for all of its job, before its record; return the plan with them."""
        for course in courses:
            if course.measurement and course.measurement.fixed_sizes and not course.failure:
                sizes = course.measurement.fixed_sizes
                plan = self.store.fix_steps(course.trial, sizes)
                course.trial = course.trial.with_job(sizes=sizes)
                self.observer.note(f"each trial of {course.trial.job.model} takes {sizes.steps} steps")
        return plan

    def _recorded(self, courses: Sequence[Course]) -> list[TrialRecord]:
        """Save the records of a group, then its models. Raises StoreError, at the end if models cannot be kept.

        A full disk thus costs a model, and no measurement: the audit names records whose models are gone.
        """
        records = [course.record() for course in courses]
        self._save(records)
        unwritten: list[StoreError] = []
        for course in courses:
            if course.measurement and not course.failure:
                try:
                    self.store.keep_models(course.measurement.models)
                except StoreError as error:
                    unwritten.append(error)
        for record in records:
            self.observer.trial_finished(record)
        if unwritten:
            raise unwritten[0]
        return records

    def _save(self, made: Sequence[TrialRecord]) -> None:
        """Write the records of a group, if it is not worse than what is there of it."""
        failed = [record for record in made if record.outcome.status == "failed"]
        before = self.store.outcomes_of(record.trial_id for record in made)
        were_ok = [trial_id for trial_id, status in before.items() if status == "ok"]
        if len(made) - len(failed) < len(were_ok):
            self.observer.note(f"{len(were_ok)} of these {len(made)} trials were ok before, and these records are kept")
            for record in failed:
                self.store.keep_attempt(record)
            return
        # Beside records of the group before, some of these would not be believed.
        with uninterrupted():
            # Until the last is written, one trial has no record or one that failed, and the group is due.
            last = ("ok", "failed", "absent").index
            in_order = sorted(made, key=lambda record: last(before.get(record.trial_id, "absent")))
            for record in in_order:
                if record.trial_id in before:
                    self.store.unlist(f"{TRIALS}/{record_file(record.trial_id)}")
                self.store.save(record)

    def _courses(self, group: Sequence[Trial], number_of: Callable[[Trial], int], of: int) -> list[Course]:
        """Measure the trials of a group. Those that fail say so in their courses."""

        def begin(trial: Trial) -> Course:
            self.observer.trial_started(trial, number_of(trial), of)
            started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            return Course(trial, started_at, self.host())

        if group[0].job.turns:
            return self._in_turns(group, begin)
        course = begin(group[0])
        with course.failing():
            self._measure(course)
        return [course]

    def _measure(self, course: Course) -> None:
        """Open, measure, close. Progress is kept in ``course`` even if the trial fails."""
        trial = course.trial
        self.observer.phase("opening")
        with self.open_target(trial) as instances:
            course.opened(instances)
            course.account = self.open_account(trial, instances)
            try:
                course.measurement = self.scenario.measure(trial, instances, self.observer, course.account)
            finally:
                end = time.monotonic()
                self.observer.phase("closing")
        course.close_s = time.monotonic() - end
        course.check()

    def _in_turns(self, trials: Sequence[Trial], begin: Callable[[Trial], Course]) -> list[Course]:
        """Measure the trials of a block in turns; return their courses, in their order.

        A job that fails is ended, and the others go on. At the end, and by Ctrl-C, every target is closed.
        """
        if not isinstance(self.scenario, TurnScenario):
            raise MeasurementError(f"the jobs of the scenario {self.scenario.name} cannot take turns", kind="plan")
        begun_s = time.monotonic()
        courses = []
        players = []
        with ExitStack() as stack:
            for trial in trials:
                course = begin(trial)
                courses.append(course)
                with course.failing():
                    players.append(self._ready(self.scenario, course, stack))
            if players:
                self._play(players)
                self.observer.phase("closing")
        block_s = time.monotonic() - begun_s
        for player in players:
            if player.bursts:
                player.course.alternation = Alternation(instances=len(trials), block_s=block_s, bursts=player.bursts)
        return courses

    def _ready(self, scenario: TurnScenario, course: Course, stack: ExitStack) -> _Player:
        """Open the target of a trial, and bring its job to its measured steps. The stack closes it."""
        trial = course.trial
        self.observer.phase("opening", trial.target)
        # What goes wrong when the target is closed, which is after all turns, is this trial's failure, too.
        stack.enter_context(course.failing())
        instances = stack.enter_context(self.open_target(trial))
        course.opened(instances)
        job = scenario.turn_taker(trial, instances, self.observer)
        stack.callback(job.kill)
        job.begin()
        return _Player(course, instances, job)

    def _play(self, players: Sequence[_Player]) -> None:
        instances = [instance for player in players for instance in player.instances]
        account = self.open_account(players[0].course.trial, instances)
        with account:
            for player in players:
                player.meter = meter = account.meter(player.instances)
                player.spent_s = meter.cpu_s()
            self._take_turns(players)
        for player in players:
            player.course.account = account
            if player.course.failure is None:
                with player.course.failing():
                    player.course.measurement = player.job.end()
                    player.course.check()

    def _take_turns(self, players: Sequence[_Player]) -> None:
        """Hand out the turns of each round; those of time slices until the last job has ended."""
        by_trial = {player.course.trial.trial_id: player for player in players}
        trials = [player.course.trial for player in players]
        turns = trials[0].job.turns
        of_rounds = f" of {turns.rounds}" if isinstance(turns, Alternating) else ""
        first_s = time.monotonic()
        for number, order in enumerate(rounds_of(trials)):
            if not any(player.plays_on for player in players):
                break
            self.observer.phase("round", f"{number + 1}{of_rounds}")  # all jobs wait
            for position, trial in enumerate(order):
                player = by_trial[trial.trial_id]
                if player.plays_on:
                    with player.course.failing():
                        player.take_turn(number, position, first_s)


def _between(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    return max(0.0, after - before)
