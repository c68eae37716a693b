"""Refusals name an option by ``option``, which a plan file spells as its key and the command line as its flag.

What people write is read as the other transcript has it, and systemd reads the same schedules.
"""

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence

import pytest
from click.testing import CliRunner

import cli
from suite.registries import ENGINES, MACHINES
from suite.request.request import OPTIONS
from tests import parsed
from tests.commands.conftest import Bench, Machine, ended_well
from tests.commands.conftest import refused as refused_with
from tests.refusals import TRANSCRIPT, answer_to, commands, declared_refusals, read
from tests.test_rooms import NAMES, dotted, tree

TOLD = read(TRANSCRIPT.read_text())
FLAGS = {spelling for each in OPTIONS.values() for spelling in each.flags}
OTHER_COMMANDS = {"scenarios/datasets/processes.py": "--workers", "provisioning/images/adopt.py": "--site"}
"""Flags of other commands that are called as an option of a run: ``bench data make --workers``."""
TYPED = r"(bench|kubectl|python) .*"
"""A command to type has flags, whatever the user wrote."""
OUTSIDE_PLANS = ("commands/", "analysis/load/", "worker/", "provisioning/clouds/", "cli.py")
"""Commands name their own options, ``bench machines`` in clouds too; records and workers never see a plan file."""


def texts(node: ast.AST) -> Iterator[str]:
    """The strings below a node, each whole; ``{}`` stands for what is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


def refused(module: ast.AST) -> Iterator[str]:
    """The text of every error and refusal, as it is written."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and re.search(r"Error$|refusal$|^refuse_|within$", dotted(node.func)):
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from texts(argument)


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]*", re.sub(TYPED, "", text))) & FLAGS


def test_no_refusal_writes_a_flag_by_hand() -> None:
    names = [name for name in NAMES if not name.startswith(OUTSIDE_PLANS)]
    by_hand = {(name, flag) for name in names for text in refused(tree(name)) for flag in flags_in(text)}
    assert by_hand - set(OTHER_COMMANDS.items()) == set()
    module = ast.parse('raise RequestError(f"--ablate {name}: no", remedy="use --isa shared, or bench run --cpus 2")')
    assert {flag for text in refused(module) for flag in flags_in(text)} == {"--ablate", "--isa"}


def test_the_transcript_has_every_request_that_options_refuse_by_their_declaration() -> None:
    found = declared_refusals()
    assert [message for message, given in found.items() if not given] == [], "no request meets these conditions"
    assert [*commands()] == [*TOLD][: len(commands())], "python -m tests.refusals"


@pytest.mark.usefixtures("machine")
def test_every_request_of_the_transcript_is_refused_with_its_message_and_its_remedy() -> None:
    assert {command: answer_to(command) for command in TOLD} == TOLD, "python -m tests.refusals"


def test_every_refusal_is_of_one_line_names_the_flag_and_has_a_remedy() -> None:
    for answer in TOLD.values():
        message, *remedy = answer.splitlines()
        assert message.startswith("Error: ") or (len(remedy) == 1 and len(remedy[0]) > len("  what to do: "))
    for command in commands():
        assert set(re.findall(r"--[a-z-]+", TOLD[command].partition("\n")[0])) & {*command.split()}, command


def test_several_targets_and_a_value_with_dashes_are_taken() -> None:
    line = "run --target vm --target container --out=--odd --dry-run --profile nothing"
    assert "'nothing'" in CliRunner().invoke(cli.main, line.split()).stderr


READ = read(parsed.TRANSCRIPT.read_text(), ">")


def test_every_text_is_read_or_refused_as_in_the_transcript() -> None:
    assert {question: parsed.answer_to(question) for question in READ} == READ, "python -m tests.parsed"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_understands_every_schedule() -> None:
    forms = [answer for question, answer in READ.items() if question.startswith("schedule ") and answer[0] == "("]
    argv = ["systemd-analyze", "calendar", *{ast.literal_eval(form)[1] for form in forms}]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


OWN_SERVER = ("run", "--scenario", "serve", "--port", "8000", "--blocks", "1")
SAVED = {
    "docker": "saves what descends from a container's first process",
    "podman": "saves what descends from a container's first process",
    "runc": "saves what descends from a container's first process",
    "gvisor": "takes devices over only when it starts",
    "charliecloud": "gives its containers no network that is made later",
    "apptainer": "gives its containers no network that is made later",
    "kubernetes": "the files of a command are not sent to joined pods",
    "qemu": "a server is detached in a guest, and not in a container of one",
    "libvirt": "not in that of a node of the lab",
}
"""Why no server of the user's own starts from a snapshot in a container of the engine, or in one in QEMU's guest, or in
a guest of libvirt."""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("bare-metal",), "not saved together with bench's end of its pipes"),
        *((("container", "--engine", name), SAVED[name]) for name in ENGINES.own),
        (("vm", "--provider", "libvirt"), SAVED["libvirt"]),
        *((("container-vm", "--provider", name), SAVED[name]) for name in MACHINES.own),
    ],
)
def test_only_a_guest_of_qemu_starts_a_server_from_a_snapshot_and_every_other_target_says_why(
    bench: Bench, machine: Machine, words: Sequence[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioning.machines.libvirt.Libvirt.version", lambda *_: "9.0.0")
    machine.usable |= dict.fromkeys((*ENGINES.own, *MACHINES.own), True)
    answer = bench(*OWN_SERVER, "--from-snapshot", "--target", *words, "--", "true")
    refused_with(answer, reason, "what to do: ")
    assert machine.events == []


def test_a_snapshot_of_a_guest_is_planned_and_no_ablation_with_it(bench: Bench, machine: Machine) -> None:
    words = (*OWN_SERVER, "--from-snapshot", "--target", "vm")
    planned = ended_well(bench(*words, "--dry-run", "--", "true"))
    assert "vm" in planned.stdout
    refused_with(bench(*words, "--ablate", "pinning", "--", "true"), "a snapshot is that of the target as it is")
    assert machine.events == []
