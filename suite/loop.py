"""The one loop: for each trial open the target, measure, close, record. Trials that take turns are open at once."""

import datetime
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from suite.errors import MeasurementError
from suite.interfaces import Observer, OpenAccount, OpenTarget, Scenario, TurnScenario
from suite.interruption import uninterrupted, unsuspended
from suite.plan import Plan, Trial, together
from suite.records.course import Course
from suite.records.environment import Environment
from suite.records.record import TrialRecord
from suite.results.store import TRIALS, Run, StoreError
from suite.rounds import Rounds
from suite.trial_names import record_file


@dataclass(frozen=True)
class Loop:
    """Runs the trials of a plan. ``host`` returns the environment of this machine."""

    scenario: Scenario
    open_target: OpenTarget
    store: Run
    observer: Observer
    host: Callable[[], Environment]
    open_account: OpenAccount

    def run(self, plan: Plan, block: int | None = None) -> list[TrialRecord]:
        """Run what the store does not hold yet, of one block or of all; every trial is saved before the next begins.

        A trial that fails is a record and the run goes on. Trials that take turns are saved together, and made again
        together where one of them is missing or has failed: their bursts are held against each other. Those made again
        take the place of those before unless fewer are ok. Returns the records made now. What ends the run: Ctrl-C,
        and a store that cannot be written.
        """
        plan = self.store.begin(plan)
        finished = set(self.store.finished())
        trials = list(plan.trials() if block is None else plan.trials_of(block))
        numbers = {trial.trial_id: number for number, trial in enumerate(trials, start=1)}
        due = [group for group in together(trials) if not finished.issuperset(trial.trial_id for trial in group)]
        # Whoever runs block after block counts over all of them.
        if block is None and (skipped := len(trials) - sum(map(len, due))):
            self.observer.note(f"{skipped} of {len(trials)} trials are there already and are kept")
        records, models_bytes = [], 0
        for group in due:
            self.store.demand_space(models_bytes)
            with unsuspended():
                courses = self._courses(group, lambda trial: numbers[trial.trial_id], len(trials))
            models_bytes = max(models_bytes, *(course.models_bytes for course in courses))
            records += self._recorded(courses, finished)
        return records

    def _recorded(self, courses: Sequence[Course], finished: Set[str]) -> list[TrialRecord]:
        """Save the models and the records of a group. Raises StoreError, after the records if models cannot be kept.

        A trial whose models cannot be stored has failed.
        """
        unwritten: list[StoreError] = []
        for course in courses:
            if course.measurement and not course.failure:
                try:
                    self.store.keep_models(course.measurement.models)
                except StoreError as error:
                    course.failure = error
                    unwritten.append(error)
        made = [course.record(self.store.run_id) for course in courses]
        self._save(made, finished)
        for record in made:
            self.observer.trial_finished(record)
        if unwritten:
            raise unwritten[0]
        return made

    def _save(self, made: Sequence[TrialRecord], finished: Set[str]) -> None:
        """Write the records of a group, if it is not worse than what is there of it."""
        failed = [record for record in made if record.outcome.status == "failed"]
        before = sum(record.trial_id in finished for record in made)
        if len(made) - len(failed) < before:
            self.observer.note(f"{before} of these {len(made)} trials were ok before, and these records are kept")
            for record in failed:
                self.store.keep_attempt(record)
            return
        # Beside records of the group before, some of these would not be believed.
        with uninterrupted():
            # What was ok comes first: until the last is written one has no record that is ok, and the group is due.
            for record in sorted(made, key=lambda record: record.trial_id not in finished):
                if record.trial_id in finished:
                    self.store.unlist(f"{TRIALS}/{record_file(record.trial_id)}")
                self.store.save(record)

    def _courses(self, group: Sequence[Trial], number_of: Callable[[Trial], int], of: int) -> list[Course]:
        """Measure the trials of a group. Those that fail say so in their courses."""

        def begin(trial: Trial) -> Course:
            self.observer.trial_started(trial, number_of(trial), of)
            started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            return Course(trial, started_at, self.host())

        if group[0].job.turns is None:
            course = begin(group[0])
            with course.failing():
                self._measure(course)
            return [course]
        if not isinstance(self.scenario, TurnScenario):
            raise MeasurementError(f"the jobs of the scenario {self.scenario.name} cannot take turns", kind="plan")
        rounds = Rounds(self.scenario, self.open_target, self.open_account, self.observer)
        return rounds.measured(group, group[0].job.turns, begin)

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
