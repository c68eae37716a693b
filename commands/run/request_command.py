"""The command line of a request: its options in groups, their completion, and what is made of them."""

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any

import click
from click.shell_completion import CompletionItem

from scenarios.own_workload import file_of, sha256_of
from suite.errors import RequestError, flag, option
from suite.job.command import AUTO, COMMAND
from suite.job.job import Job
from suite.request.option import ALL, Option
from suite.request.repetitions import EXTENDING
from suite.request.request import OPTIONS, Defaults, RunRequest, group_models, implied_scenario, with_defaults
from suite.results.runs import SWEEP, is_run
from suite.results.store import PLAN, stored_plan
from suite.targets import VERSUS
from suite.units import count
from suite.untrusted.files import refuse_writable_by_others

COMMON = "Common options"
ALL_OPTIONS = "--all"
"""The word beside ``--help`` that shows every option in full."""
DEFAULTS = "virtbench.defaults"
"""The key, in the meta of click's context, of the defaults that a request took from the project's file."""
_SUMMARY = 56
"""The columns of a summary: with its option, a line of a terminal of 80."""
_FEW = 4
"""An option that no more scenarios take is shown with each of them."""
_LONGEST_CHOICES = 66
_VERSUS = flag(VERSUS)
_MORE = (
    f"bench run --scenario NAME --help adds the options of that scenario; --help {ALL_OPTIONS} shows every option in "
    "full."
)


class Value(click.ParamType[Any]):
    """One value of an option, as a request takes it. What is wrong with it the request says."""

    def __init__(self, declared: Option) -> None:
        self._declared = declared
        self.name = {int: "number", Path: "file"}.get(declared.kind, "name" if declared.choices() else "text")

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002 (click's)
        if self.names_choices:
            return "|".join(self._declared.choices())
        return None

    @property
    def names_choices(self) -> bool:
        return 0 < len("|".join(self._declared.choices())) <= _LONGEST_CHOICES

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return a whole number where the option is one. Raises RequestError where that cannot be."""
        if self._declared.kind is not int:
            return value
        try:
            return int(value)
        except ValueError:
            name = option(self._declared.name)
            raise RequestError(f"{name} {value!r} is not a number", remedy="give a whole number") from None

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the choices that begin like this; files where the value is a file."""
        if self._declared.kind is Path:
            return [CompletionItem(incomplete, type="file")]
        names = [*self._declared.choices(ctx.params.get("scenario")), *[ALL] * self._declared.several]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class RequestCommand(click.Command):
    """A command that is given a ``RunRequest`` as ``request``, and further options of its own.

    Help summarises the options that most people need and, after ``--scenario NAME``, those of that scenario. With
    ``--all`` it shows every option in full, by topic.
    """

    def __init__(self, name: str, *, params: list[click.Parameter], **more: Any) -> None:  # noqa: ANN401 (click's)
        super().__init__(name, params=[*map(parameter_of, OPTIONS.values()), *params], **more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the request in place of its options; what stands behind ``--`` is a program. Raises RequestError."""
        if "--" in args:
            end = args.index("--")
        else:
            end = len(args)
        ctx.allow_extra_args = True
        ctx.meta[ALL_OPTIONS] = ALL_OPTIONS in args[:end]
        rest = super().parse_args(ctx, args[:end])
        if rest and not ctx.resilient_parsing:
            words = shlex.join(rest)
            raise RequestError(f"unexpected: {words}", remedy=f"a program stands behind --: bench run -- {words}")
        if not ctx.resilient_parsing:
            values = {name: ctx.params.pop(name) for name in OPTIONS}
            # A flag that is not there is False, and an option that can be repeated is an empty tuple.
            given = {name: value for name, value in values.items() if not (value in (None, ()) or value is False)}
            program = args[end + 1 :] if end < len(args) else None
            continued = ctx.params.get("continued")
            if continued:
                given = given if program is None else _with_program(given, program)
                ctx.params["request"] = _stored(continued, ctx, given)
            else:
                ctx.params["request"], ctx.meta[DEFAULTS] = requested(given, program)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        scenario = ctx.params.get("scenario")
        in_full = bool(ctx.meta.get(ALL_OPTIONS))
        if in_full:
            groups = grouped_options(scenario)
        else:
            groups = _page(scenario)
        by_name = {str(parameter.name): parameter for parameter in self.get_params(ctx)}
        own = [parameter for parameter in self.get_params(ctx) if parameter.name not in OPTIONS]
        for title, options in groups.items():
            parameters = [*(by_name[declared.name] for declared in options), *(own if title == COMMON else ())]
            if parameters:
                with formatter.section(title):
                    formatter.write_dl([_row(parameter, ctx, in_full=in_full) for parameter in parameters], 18)
        if not in_full:
            formatter.write_paragraph()
            formatter.write_text(_MORE)


def requested(given: Mapping[str, object], program: Sequence[str] | None = None) -> tuple[RunRequest, Defaults | None]:
    """Return the request of options and of the words behind ``--``, with the defaults of the project that fit them.

    What the project's file gives and does not fit is named on standard error. Raises RequestError.
    """
    if program is not None:
        given = _with_program(given, program)
    request, defaults = with_defaults(given)
    if defaults:
        for name, why in defaults.left_out.items():
            click.echo(f"{name} of {defaults.file} is left out: {why}", err=True)
    return request, defaults


def _page(scenario: str | None) -> Mapping[str, list[Option]]:
    """Return the options that most people need, and those of a scenario that few others have."""
    groups = grouped_options(scenario)
    special = [declared for declared in chain(*groups.values()) if scenario and len(declared.scenarios) <= _FEW]
    return {COMMON: groups[COMMON], f"Options of scenario {scenario}": special}


def with_help_alone(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Raise RequestError for ``--all``: with ``--help``, which comes first, this is not reached."""
    if value:
        raise RequestError(f"{ALL_OPTIONS} belongs to --help", remedy=f"bench run --help {ALL_OPTIONS}")


def _row(parameter: click.Parameter, ctx: click.Context, *, in_full: bool) -> tuple[str, str]:
    """Return an option and its help, or the first sentence of that, as much of it as a line has room for."""
    option_words, text = parameter.get_help_record(ctx) or ("", "")
    return option_words, text if in_full else shorten(re.split(r"(?<=\.) ", text)[0], _SUMMARY, placeholder=" ...")


def grouped_options(scenario: str | None) -> Mapping[str, list[Option]]:
    """Return the options that a scenario knows, or all, by their titles in help: those that most people need first."""
    titles = {part: str(model.__doc__).partition("\n")[0].removesuffix(".") for part, model in group_models().items()}
    groups: dict[str, list[Option]] = {COMMON: [], **{title: [] for title in titles.values()}}
    for declared in OPTIONS.values():
        if scenario is None or declared.known_to(scenario):
            groups[COMMON if declared.about.common else titles[declared.part]].append(declared)
    return groups


def request_of(command: click.Command, words: list[str]) -> RunRequest:
    """Return what the words of a command line, after ``bench run``, ask for. Raises RequestError."""
    # click keeps the options of help that it makes first: these must be those of ``bench``.
    request = command.make_context("bench run", words, help_option_names=["-h", "--help"]).params["request"]
    assert isinstance(request, RunRequest)  # noqa: S101 (as parse_args has put it there)
    return request


def _with_program(given: Mapping[str, object], words: Sequence[str]) -> dict[str, object]:
    """Return the options for a program in this directory, of scenario command unless they imply another.

    Raises RequestError.
    """
    if not words:
        raise RequestError("no program behind --", remedy="give one: bench run -- python train.py")
    implied = str(implied_scenario({**given, COMMAND: words[0]}))
    if not OPTIONS[COMMAND].known_to(implied):  # no scenario has all that is given
        implied = COMMAND
    scenario = str(given.get("scenario", implied))
    if given.get(COMMAND) or not OPTIONS[COMMAND].known_to(scenario):
        if given.get(COMMAND):
            other = option(COMMAND)
        else:
            other = f"{option('scenario')} {given['scenario']}"
        raise RequestError(f"a program behind -- and {other} exclude each other", remedy="give one of them")
    usual = usual_of_program(scenario)
    if _VERSUS not in words:
        return {**usual, **given, COMMAND: shlex.join(words)}
    place = words.index(_VERSUS)
    first = words[:place]
    second = words[place + 2 :]
    if words[place + 1 : place + 2] != ["--"] or _VERSUS in second or not (first and second):
        raise RequestError(
            f"{_VERSUS} stands between two commands, each behind --",
            remedy=f"write it as bench run -- python a.py {_VERSUS} -- python b.py; if it belongs to your program, "
            f"use {option(COMMAND)}",
        )
    return {**usual, **given, COMMAND: shlex.join(first), VERSUS: shlex.join(second)}


def usual_of_program(scenario: str) -> dict[str, object]:
    """Return the options of a program that runs with the files of this directory, unless others are given."""
    usual: dict[str, object] = {"scenario": scenario, "command_files": Path()}
    if OPTIONS["throughput"].known_to(scenario):
        usual["throughput"] = AUTO
    return usual


def _stored(run: Path, ctx: click.Context, given: Mapping[str, object]) -> RunRequest:
    """Return the request of the run in a directory, with another stop rule if options of that are given.

    Raises RequestError for all other options.
    """
    more = [*(name for name in given if name not in EXTENDING), *["out"] * bool(ctx.params["out"])]
    if more:
        raise RequestError(
            f"--continue resumes a run with its own options, and {', '.join(map(flag, more))} would change it",
            remedy=f"give --continue alone or with {', '.join(map(flag, EXTENDING))}, or begin another run",
        )
    if not is_run(run):
        raise RequestError(f"no run in {run}", remedy="name the directory of one: bench results list shows them")
    if (run.parent / SWEEP).is_file():
        raise RequestError(f"{run} is a cell of a sweep", remedy="go on with its plan file: bench sweep run FILE")
    plan = stored_plan(run)
    request = plan.request
    if request is None:
        raise RequestError(
            f"{run} has no stored request",
            remedy=f"give the options that it was begun with, and --out {run}",
        )
    _refuse_other_code(run, plan.jobs, [word for word in request.models if OPTIONS["model"].is_path(word)])
    if not given:
        return request
    if int(str(given.get("blocks", plan.blocks))) < plan.blocks:
        raise RequestError(
            f"{option('blocks')} {given['blocks']}: the run has {count(plan.blocks, 'block')}", remedy="give more"
        )
    # By default the warm-up depends on the stop rule; that of the run stays.
    return request.changed(**request.repetitions.extended(given), warmup_blocks=plan.warmup_blocks)


def _refuse_other_code(run: Path, jobs: Sequence[Job], files: Sequence[str]) -> None:
    """Raise RequestError where the plan names files to import here that are not this user's, or not those it ran."""
    for word in files:
        refuse_writable_by_others(run / PLAN, "the plan")
        refuse_writable_by_others(file_of(word)[0], "the workload")
        if sha256_of(word) not in {job.workload_sha256 for job in jobs}:
            raise RequestError(
                f"{word} is not what {run} was begun with",
                remedy="a changed workload is another job: begin another run with it",
            )


def parameter_of(declared: Option) -> click.Option:
    value = Value(declared)
    if declared.kind is bool:
        return click.Option([*declared.flags, declared.name], is_flag=True, help=declared.help())
    return click.Option(
        [*declared.flags, declared.name],
        type=value,
        multiple=declared.repeatable,
        # Before --help, which then shows the options of that scenario alone.
        is_eager=declared.name == "scenario",
        help=declared.help(listed=not value.names_choices),
    )
