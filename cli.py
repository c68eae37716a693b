"""The command ``bench``: its commands, and how errors become messages and exit codes."""

import atexit
import errno
import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from commands.lazy import LazyGroup
from suite.errors import REMEDY_LABEL, BenchError, RequestError, of_system
from suite.interruption import ENDING, cleaning_up, interrupted
from suite.untrusted.terminal import clean, clean_streams

COMMANDS = {
    "doctor": "commands.machine:doctor",
    "image": "commands.image:image",
    "data": "commands.data:data",
    "run": "commands.run.command:run",
    "sweep": "commands.sweep.command:sweep",
    "reproduce": "commands.reproduce.command:reproduce",
    "audit": "commands.audit:audit",
    "selftest": "commands.selftest:selftest",
    "compare": "commands.compare.command:compare",
    "history": "commands.history:history",
    "quality": "commands.quality:quality",
    "report": "commands.compare.command:report",
    "serve": "commands.serve:serve",
    "web": "commands.web.command:web",
    "results": "commands.results.command:results",
    "kubernetes": "commands.kubernetes.command:kubernetes",
    "machines": "commands.hire:machines",
    "clean": "commands.machine:clean",
    "schema": "commands.output:schema",
}
SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
SYSTEM_PROGRAMS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""The directories of mke2fs and others, which Debian's login leaves out of the PATH of users other than root."""
INTERRUPTED = 130
_OBJECTS = 100_000
"""The new objects after which the interpreter looks for garbage."""
_JSON = "virtbench.json"
"""The key, in the context of the command line, of whether it has ``--json``."""

EPILOG = """\b
Exit codes: 0 done; 1 a measurement failed; 2 the request was wrong; 130 interrupted.
A gate (compare --fail-above) ends with 3 if slower, and 4 if it cannot tell.
"""


class Bench(LazyGroup):
    """The commands, and the one place where an error becomes a message: what, where, what to do next.

    With ``VIRTBENCH_DEBUG`` set, the traceback is shown.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of the command line, and refuse names that are not UTF-8: no record could hold them."""
        # The suite has no plugins of pydantic's; looking for some fails if any installed package is broken.
        os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
        ctx.meta[_JSON] = "--json" in itertools.takewhile(lambda word: word != "--", args)
        for word in (*args, os.environ.get("VIRTBENCH_HOME", "")):
            if word.encode(errors="replace").decode() != word:
                raise click.UsageError(f"{clean(word)} is not UTF-8: name it by a path that is")
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 (as click has it)
        """Run the command, and end with the exit code of what it raises."""
        # What is imported stays: to look for garbage in it every 700 objects, and at the end, takes long.
        gc.set_threshold(_OBJECTS)
        atexit.register(gc.freeze)
        with clean_streams():
            try:
                return super().invoke(ctx)
            except click.ClickException as error:  # click prints it, too
                if ctx.meta[_JSON]:
                    _print_json("usage", error.format_message(), exit_code=error.exit_code)
                raise
            except (BenchError, OSError, UnicodeError, MemoryError) as error:
                if interrupted():  # it was raised by what was being cleaned up
                    _end_interrupted(ctx)
                if os.environ.get("VIRTBENCH_DEBUG") or getattr(error, "errno", None) == errno.EPIPE:
                    raise
                _print_error(ctx, error)
            except KeyboardInterrupt:
                _end_interrupted(ctx)


def _end_interrupted(ctx: click.Context) -> NoReturn:
    """Remove what this process still holds, name what cannot be removed, and end."""
    # Here, since most commands hold nothing, and this imports what they do without.
    from provisioning import ledger

    remaining = ledger.end_held()
    if remaining:
        ended = f"these are left: {'; '.join(remaining)}"
    else:
        ended = "everything started is ended"
    click.echo(f"interrupted: {ended}; what was measured is kept", err=True)
    if remaining:
        click.echo(f"  {REMEDY_LABEL}bench clean removes them", err=True)
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)  # else one that comes while the interpreter ends would be the exit code
    ctx.exit(INTERRUPTED)


def _print_json(kind: str, message: str, **details: Any) -> None:  # noqa: ANN401 (those of the model)
    # Here, since pydantic takes longer to import than most commands to refuse a word.
    from commands.output import ErrorDetails, ErrorOutput

    ErrorOutput(error=ErrorDetails(kind=kind, message=message, **details)).tell()


def _print_error(ctx: click.Context, error: BenchError | OSError | UnicodeError | MemoryError) -> None:
    """Print an error as a message, with ``--json`` as an object too, and end with its exit code."""
    if isinstance(error, OSError):
        error = of_system(error)
    elif isinstance(error, UnicodeError):
        error = RequestError(f"a name or a text is not UTF-8: {error}", remedy="give it another name")
    elif isinstance(error, MemoryError):
        error = BenchError("this process has no memory left", remedy="give it more, or name less at a time")
    tail = error.output_tail.rstrip()[-3000:]
    if ctx.meta[_JSON]:
        _print_json(error.kind, error.message, remedy=error.remedy, output_tail=tail, exit_code=error.exit_code)
    click.echo(f"bench: {error.message}", err=True)
    if tail:
        click.echo(tail, err=True)
    if error.remedy:
        click.echo(f"  {REMEDY_LABEL}{error.remedy}", err=True)
    ctx.exit(error.exit_code)


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        # Here: digests load a library, a tenth of the time in which the help is printed.
        from suite.version import suite_version

        click.echo(f"bench, version {suite_version()}")
        context.exit()


@click.group(cls=Bench, lazy=COMMANDS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    "-V",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Measure what virtualisation costs deep-learning training.

    The same training runs on bare metal, in a container, in a virtual machine, and in a container inside a virtual
    machine; the numbers are normalised to bare metal.

    \b
    Examples:
      bench doctor                                   what this machine can measure
      bench image build                              the userland that all targets run
      bench run --target all --profile smoke         measure
      bench compare                                  tables and plots of the latest run
    """
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys([*path, *SYSTEM_PROGRAMS]))
    _end_in_order_on_signals()


def _end_in_order_on_signals() -> None:
    """Let SIGTERM and SIGHUP end a run as Ctrl-C does; a signal that comes while it cleans up does not stop that."""

    def listen(handler: Callable[[int, FrameType | None], object]) -> None:
        for number in ENDING:
            signal.signal(number, handler)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        listen(cleaning_up)
        raise KeyboardInterrupt(number)

    def again(lost: "sys.UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            before(lost)
            return
        # A callback of the interpreter was interrupted, which can raise nothing; and this is still called from there.
        listen(interrupt)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    before = sys.unraisablehook
    sys.unraisablehook = again
    listen(interrupt)


@main.command()
@click.argument("shell", type=click.Choice([*SHELLS]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      bench completion bash > ~/.local/share/bash-completion/completions/bench
    """
    click.echo(SHELLS[shell](main, {}, "bench", "_BENCH_COMPLETE").source())


if __name__ == "__main__":
    main()
