"""A command: a program of the user's own, run as it is in place of a training. Its trial's model is its name.

In turns it is stopped while the others run, so that what disturbs the machine for seconds or minutes meets all of them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from scenarios.command_files import NoFilesError, files_of, refuse_missing_script
from scenarios.events import PROBE_PHASES, PROBE_TURNS_PHASES, EventLog
from scenarios.job import AttestedJob, attest, metrics_of, recordable, throughput_of
from scenarios.reading import TEMPORARY
from scenarios.turns import BurstMessage, WorkerTurns
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Note, Observer, TurnTaker
from suite.job.command import COMMAND, UNIT, CommandJob, DecimalMark, parse_command, parse_throughput, unit_of
from suite.job.datasets import FILES, Dataset
from suite.job.job import SEQUENTIAL, TimeSlices
from suite.job.profiles import Profile
from suite.plan import Trial, planned
from suite.records.record import Timeline
from suite.records.usage import Usage
from suite.request.option import OptionGroup, Text, about, given
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.targets import VERSUS
from worker.spec import CommandRequest

MOST_IMPLIED_BYTES = 10 * 1000**3
"""A working directory of more is taken only if it is named: its files are read twice and copied."""
SLICE_S = 0.5
"""The time of a turn: long beside what a switch costs, and short beside what disturbs a shared machine."""
MOST_WAITING = 0.02
"""The share of stops at which a command may be waiting. A wait continues during a stop, so part of it is not timed."""
_NUMBER = re.compile(r"once|\d[\d.]*(?:e[-+]\d+)?(?: times)?")


class CommandOptions(OptionGroup):
    """Scenario command."""

    command: Text | None = about(
        None,
        'Program with arguments: "python train.py --epochs 1". It is split into words and started without a shell. '
        "Records contain it: do not include secrets.",
        parse=parse_command,
        runs_program=True,
        shared_with=("serve",),
    )
    versus: Text | None = about(
        None,
        "Second command, compared with the first on one target. Both are run in every block of the run; the first, a, "
        "is the base of the second, b. After --: bench run -- python a.py --versus -- python b.py. Default target: "
        "bare metal.",
        parse=parse_command,
        runs_program=True,
        needs=(given("command", example='"python a.py"'),),
    )
    command_files: Path | None = about(
        None,
        "Directory to copy. The command works in a writable in-memory copy of it.",
        own_code=True,
        shared_with=("serve",),
    )
    throughput: Text | None = about(
        None,
        "What to read as the throughput. auto: the only rate that is printed, such as 12.3 images/s, if any. The name "
        "of one of several rates: 'train images/s'. json: objects with the keys throughput and step; json:KEY names "
        "another key, or a path such as train.throughput. Or a regular expression with a group (?P<throughput>...), "
        "in units per second, or (?P<seconds>...), the time of a step, such as 'time (?P<seconds>[0-9.]+)ms'; "
        "optionally (?P<step>...). The command then runs in one piece: its own clock would count the stops of turns. "
        "Default: none; the elapsed time decides.",
        parse=parse_throughput,
    )
    decimal_mark: DecimalMark | None = about(
        None,
        "Decimal mark of printed numbers: with point, 12,345 is read as 12345, with comma as 12.345. Default: numbers "
        "that could be either are left unread.",
        idle_without=(given("throughput"),),
    )
    unit: Annotated[Text, Field(pattern=UNIT)] | None = about(
        None,
        f"Unit of the throughput, such as tokens. It needs {option('throughput')}. Default: the printed unit, else "
        "samples, or steps with a pattern of seconds.",
        idle_without=(given("throughput"),),
    )


class Command(PlannedScenario):
    """One command on one instance, as the child of a worker that attests the target and counts what the child uses."""

    name = COMMAND
    options = CommandOptions
    inventory = True
    workloads = trains = False
    deciding = ("throughput", "elapsed")
    subject = "command"
    unnamed = ""

    def __init__(self, command: CommandJob | None = None) -> None:
        self._command = command
        self._noted = set[str]()

    @classmethod
    def of(cls, request: RunRequest) -> "Command":
        options = request.options(CommandOptions)
        if not options.command:
            raise RequestError(
                f"{option('scenario')} {cls.name} needs {option('command')}",
                remedy=f'add {option("command")} "python train.py --epochs 1"',
            )
        if options.versus and len(request.targets.target) > 1:
            raise RequestError(
                f"{option('versus')} compares two commands on one target, not on {len(request.targets.target)}",
                remedy=f"give one {option('target')}",
            )
        argv = parse_command(options.command)
        versus = None
        if options.versus:
            versus = parse_command(options.versus)
        return cls(
            CommandJob(
                argv=argv,
                versus=versus,
                throughput=options.throughput,
                decimal_mark=options.decimal_mark,
            )
        )

    def arms(self, request: RunRequest) -> tuple[str, ...]:
        if request.options(CommandOptions).versus:
            return (VERSUS,)
        return ()

    def models(self, request: RunRequest) -> tuple[str, ...]:
        if self._command:
            return (self._command.name,)
        return ()

    def data_set(self, request: RunRequest, home: Path, note: Note) -> tuple[str, Dataset | None]:
        if self._command is None:
            return "none", None
        commands = [self._command.argv]
        if self._command.versus:
            commands.append(self._command.versus)
        return command_data_set(request, commands, note)

    def unit(self, request: RunRequest, model: str) -> str:
        options = request.options(CommandOptions)
        return options.unit or unit_of(options.throughput or "")

    def part(self, request: RunRequest, profile: Profile, model: str) -> Mapping[str, object]:
        return {"command": self._command}

    def turns(self, request: RunRequest) -> TimeSlices | None:
        if request.measurement.turns is None:
            return None
        return TimeSlices(slice_s=SLICE_S)

    def hinders_turns(self, request: RunRequest) -> tuple[str, str] | None:
        measurement = request.measurement
        if measurement.design == SEQUENTIAL:
            return "it was asked for in one piece", ""
        if request.options(CommandOptions).throughput:
            why = "its own clock, which makes the throughput, would count the time in which it is stopped"
            return why, f"leave {option('throughput')} or {option('design')} out"
        if request.gpus.device != "cpu":
            return "its GPU would compute on while it is stopped", ""
        if measurement.rounds or measurement.burst_steps:
            steps = " and ".join(option(name) for name in ("rounds", "burst_steps") if getattr(measurement, name))
            return f"a command takes a turn of {SLICE_S:g} s until it has ended", f"leave {steps} out"
        return None

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: Context,
    ) -> Measurement:
        """Run the command. Raises MeasurementError unless it ends well and has printed what is read of it."""
        (instance,) = instances
        job = _attested(trial, instance, observer)
        with account:
            elapsed_s = job.follow()
        self._pass_on(job.log.said("metrics", "details").get("notes"), trial, observer)
        with recordable(job.argv):
            return _measurement(job, elapsed_s)

    def turn_taker(self, trial: Trial, instances: Sequence[Instance], observer: Observer) -> TurnTaker:
        (instance,) = instances
        job = _attested(trial, instance, observer)
        return CommandTurns(job, lambda notes: self._pass_on(notes, trial, observer))

    def _pass_on(self, notes: object, trial: Trial, observer: Observer) -> None:
        """Print each note of a trial, and those that differ from it in numbers alone, once for all trials."""
        for note in notes if isinstance(notes, list) else ():
            alike = _NUMBER.sub("", str(note))
            if alike not in self._noted:
                self._noted.add(alike)
                observer.note(f"{trial.trial_id}: {note}")


class SliceMessage(BurstMessage):
    """The message of a command at the end of its slice of time."""

    ended: bool


class CommandTurns(WorkerTurns[SliceMessage]):
    """A command that runs for a slice of time in each turn, until one in which it ends."""

    message = SliceMessage
    job: AttestedJob[EventLog]

    def __init__(self, job: AttestedJob[EventLog], pass_on: Callable[[object], None]) -> None:
        super().__init__(job)
        self._pass_on = pass_on
        """Prints the notes of the worker."""

    @property
    def finished(self) -> bool:
        return bool(self.bursts) and self.bursts[-1].ended

    def steps_of(self, burst: SliceMessage) -> int:
        return 0

    def usage(self) -> Usage | None:
        """Return what the command used itself: its bursts hold also what its worker did."""
        return self.job.log.usage()

    def measurement(self, elapsed_s: float, span_s: float) -> Measurement:
        """Return the measurement without the turns of others. Raises MeasurementError for a command that waits itself.

        Every wait that a stop has shortened was there when it began.
        """
        log = self.job.log
        measured = _measurement(self.job, elapsed_s)
        stops, waiting = (measured.details.get(name) for name in ("stops", "stops_waiting"))
        if not isinstance(stops, int) or not isinstance(waiting, int):
            raise MeasurementError("the worker did not count the stops of the command", kind="protocol")
        if waiting > max(1, MOST_WAITING * stops):
            raise MeasurementError(
                f"the command was waiting at {waiting} of {stops} stops, and waits continue while it is stopped: its "
                "time would be too short",
                kind="waits",
                remedy=f"give {option('design')} sequential, which measures it in one piece",
            )
        self._pass_on(measured.details.get("notes"))
        ready_s = log.events["measuring"].arrived_s - log.begun_s
        ending_s = elapsed_s - (self.last_order_s - log.begun_s)
        return measured.changed(elapsed_s=ready_s + span_s + ending_s)


def _attested(trial: Trial, instance: Instance, observer: Observer) -> AttestedJob[EventLog]:
    request = _request(trial, instance)
    log = EventLog(phases=PROBE_TURNS_PHASES if trial.job.turns else PROBE_PHASES, observer=observer)
    observer.phase("attesting")
    return attest(trial, instance.node, request, log, "--command")


def _measurement(job: AttestedJob[EventLog], elapsed_s: float) -> Measurement:
    """Return what the worker measured. Raises ValidationError on what cannot be recorded, and MeasurementError."""
    log = job.log
    details = dict(log.said("metrics", "details"))
    last_step = details.get("steps")
    counted = log.events["metrics"].fields.get("counted")
    return Measurement(
        elapsed_s=elapsed_s,
        throughput_per_s=throughput_of(log),
        timeline=_timeline(log, elapsed_s),
        environment=job.environment(),
        metrics=metrics_of(log.said("metrics", "metrics")),
        **log.clocks("environment", "metrics"),
        usage=log.usage(),
        details=details,
        counted=counted if isinstance(counted, str) and re.fullmatch(UNIT, counted) else None,
        last_step=last_step if isinstance(last_step, int) and last_step < 1 << 50 else None,
        substitutes=tuple(":".join(map(str, pair)) for pair in log.said("environment", "substitutes").items()),
    )


def _timeline(log: EventLog, elapsed_s: float) -> Timeline:
    return Timeline(
        **log.ends(elapsed_s),
        build_s=log.between("started", "environment"),
        measured_s=log.between("environment", "metrics"),  # the command's own, from its start to its end
        teardown_s=log.between("metrics", "done"),
    )


def command_data_set(request: RunRequest, commands: Sequence[Sequence[str]], note: Note) -> tuple[str, Dataset | None]:
    """Return the directory that commands are given, as a data set. Raises RequestError for one without a script."""
    directory = request.options(CommandOptions).command_files
    if directory is None or not commands:
        return "none", None
    for argv in commands:
        refuse_missing_script(argv, directory.expanduser())
    try:
        most_bytes = None
        if directory == Path():  # nobody has named it
            most_bytes = MOST_IMPLIED_BYTES
        return FILES, files_of(directory, note, most_bytes=most_bytes)
    except NoFilesError:  # python -m package needs none
        return "none", None


def _request(trial: Trial, instance: Instance) -> CommandRequest:
    command = planned(trial.job.command, "its command")
    envelope = trial.job.envelope
    return CommandRequest(
        argv=command.argv_of(trial.ablation),
        threads=envelope.threads,
        directory=instance.node.data,
        throughput=command.throughput,
        decimal_mark=command.decimal_mark,
        slice_s=trial.job.turns.slice_s if isinstance(trial.job.turns, TimeSlices) else None,
        tmpfs_bytes=envelope.tmpfs_bytes,
        # Outside of an image /tmp is the machine's: the node's own directory goes with the trial.
        scratch=TEMPORARY if instance.node.userland else ".",
    )
