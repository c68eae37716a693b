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
from suite.job.command import COMMAND
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
        of_text = "name" if declared.choices() else "text"
        self.name = {int: "number", Path: "file"}.get(declared.kind, of_text)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002 (click's)
        if self.names_choices:
            return "|".join(self._declared.choices())
        return None

    @property
    def names_choices(self) -> bool:
        listed = "|".join(self._declared.choices())
        return 0 < len(listed) <= _LONGEST_CHOICES

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
        scenario = ctx.params.get("scenario")
        names = list(self._declared.choices(scenario))
        if self._declared.several:
            names.append(ALL)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class RequestCommand(click.Command):
    """A command that is given a ``RunRequest`` as ``request``, and further options of its own.

    Help summarises the options that most people need and, after ``--scenario NAME``, those of that scenario. With
    ``--all`` it shows every option in full, by topic.
    """

    def __init__(self, name: str, *, params: list[click.Parameter], **more: Any) -> None:  # noqa: ANN401 (click's)
        of_request = map(parameter_of, OPTIONS.values())
        super().__init__(name, params=[*of_request, *params], **more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the request in place of its options; what stands behind ``--`` is a program. Raises RequestError."""
        if "--" in args:
            end = args.index("--")
        else:
            end = len(args)
        ctx.allow_extra_args = True
        ctx.meta[ALL_OPTIONS] = ALL_OPTIONS in args[:end]
        rest = super().parse_args(ctx, args[:end])
        if ctx.resilient_parsing:
            return rest
        if rest:
            words = shlex.join(rest)
            raise RequestError(f"unexpected: {words}", remedy=f"a program stands behind --: bench run -- {words}")
        program = args[end + 1 :] if end < len(args) else None
        self._put_request(ctx, program)
        return rest

    def _put_request(self, ctx: click.Context, program: Sequence[str] | None) -> None:
        """Replace the values of the request's options by the request. Raises RequestError."""
        options: dict[str, object] = {}
        for name in OPTIONS:
            value = ctx.params.pop(name)
            # A flag that is not there is False, and an option that can be repeated is an empty tuple.
            absent = value in (None, ()) or value is False
            if not absent:
                options[name] = value
        continued = ctx.params.get("continued")
        if continued:
            if program is not None:
                options = _with_program(options, program)
            ctx.params["request"] = _stored(continued, ctx, options)
        else:
            request, defaults = requested(options, program)
            ctx.params["request"] = request
            ctx.meta[DEFAULTS] = defaults

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        scenario = ctx.params.get("scenario")
        in_full = bool(ctx.meta.get(ALL_OPTIONS))
        if in_full:
            groups = grouped_options(scenario)
        else:
            groups = _page(scenario)
        every_parameter = self.get_params(ctx)
        by_name = {str(parameter.name): parameter for parameter in every_parameter}
        of_command = [parameter for parameter in every_parameter if parameter.name not in OPTIONS]
        for title, options in groups.items():
            parameters = [by_name[declared.name] for declared in options]
            if title == COMMON:
                parameters += of_command
            rows = [_row(parameter, ctx, in_full=in_full) for parameter in parameters]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, 18)
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
    special: list[Option] = []
    if scenario:
        options = chain(*groups.values())
        special = [declared for declared in options if len(declared.scenarios) <= _FEW]
    return {COMMON: groups[COMMON], f"Options of scenario {scenario}": special}


def with_help_alone(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Raise RequestError for ``--all``: with ``--help``, which comes first, this is not reached."""
    if value:
        raise RequestError(f"{ALL_OPTIONS} belongs to --help", remedy=f"bench run --help {ALL_OPTIONS}")


def _row(parameter: click.Parameter, ctx: click.Context, *, in_full: bool) -> tuple[str, str]:
    """Return an option and its help, or the first sentence of that, as much of it as a line has room for."""
    option_words, text = parameter.get_help_record(ctx) or ("", "")
    if in_full:
        return option_words, text
    first_sentence = re.split(r"(?<=\.) ", text)[0]
    return option_words, shorten(first_sentence, _SUMMARY, placeholder=" ...")


def grouped_options(scenario: str | None) -> Mapping[str, list[Option]]:
    """Return the options that a scenario knows, or all, by their titles in help: those that most people need first."""
    titles = {}
    for part, model in group_models().items():
        first_line = str(model.__doc__).partition("\n")[0]
        titles[part] = first_line.removesuffix(".")
    groups: dict[str, list[Option]] = {COMMON: []}
    for title in titles.values():
        groups[title] = []
    for declared in OPTIONS.values():
        if scenario is None or declared.known_to(scenario):
            title = COMMON if declared.about.common else titles[declared.part]
            groups[title].append(declared)
    return groups


def request_of(command: click.Command, words: list[str]) -> RunRequest:
    """Return what the words of a command line, after ``bench run``, ask for. Raises RequestError."""
    # click keeps the options of help that it makes first: these must be those of ``bench``.
    context = command.make_context("bench run", words, help_option_names=["-h", "--help"])
    request = context.params["request"]
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
    separator = words[place + 1 : place + 2]
    if separator != ["--"] or _VERSUS in second or not (first and second):
        raise RequestError(
            f"{_VERSUS} stands between two commands, each behind --",
            remedy=f"write it as bench run -- python a.py {_VERSUS} -- python b.py; if it belongs to your program, "
            f"use {option(COMMAND)}",
        )
    return {**usual, **given, COMMAND: shlex.join(first), VERSUS: shlex.join(second)}


def usual_of_program(scenario: str) -> dict[str, object]:
    """Return the options of a program that runs with the files of this directory, unless others are given."""
    return {"scenario": scenario, "command_files": Path()}


def _stored(run: Path, ctx: click.Context, given: Mapping[str, object]) -> RunRequest:
    """Return the request of the run in a directory, with another stop rule if options of that are given.

    Raises RequestError for all other options.
    """
    changing = [name for name in given if name not in EXTENDING]
    if ctx.params["out"]:
        changing.append("out")
    if changing:
        flags = ", ".join(map(flag, changing))
        raise RequestError(
            f"--continue resumes a run with its own options, and {flags} would change it",
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
    files = filter(OPTIONS["model"].is_path, request.models)
    _refuse_other_code(run, plan.jobs, list(files))
    if not given:
        return request
    blocks = str(given.get("blocks", plan.blocks))
    if int(blocks) < plan.blocks:
        raise RequestError(
            f"{option('blocks')} {given['blocks']}: the run has {count(plan.blocks, 'block')}", remedy="give more"
        )
    extended = request.repetitions.extended(given)
    # By default the warm-up depends on the stop rule; that of the run stays.
    return request.changed(**extended, warmup_blocks=plan.warmup_blocks)


def _refuse_other_code(run: Path, jobs: Sequence[Job], files: Sequence[str]) -> None:
    """Raise RequestError where the plan names files to import here that are not this user's, or not those it ran."""
    digests = {job.workload_sha256 for job in jobs}
    for word in files:
        refuse_writable_by_others(run / PLAN, "the plan")
        file, _ = file_of(word)
        refuse_writable_by_others(file, "the workload")
        if sha256_of(word) not in digests:
            raise RequestError(
                f"{word} is not what {run} was begun with",
                remedy="a changed workload is another job: begin another run with it",
            )


def parameter_of(declared: Option) -> click.Option:
    words = [*declared.flags, declared.name]
    if declared.kind is bool:
        return click.Option(words, is_flag=True, help=declared.help())
    value = Value(declared)
    return click.Option(
        words,
        type=value,
        multiple=declared.repeatable,
        # Before --help, which then shows the options of that scenario alone.
        is_eager=declared.name == "scenario",
        help=declared.help(listed=not value.names_choices),
    )
