"""The next step: a command that a shell takes as it is printed, or none; three lead from a smoke run to a verdict."""

import itertools
import json
import math
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import cli
from analysis.audit.audit import audited
from analysis.compare.by import compare_by
from analysis.compare.comparison import compare
from analysis.compare.regression import regress
from analysis.load.records import load
from analysis.report.answers.answer import Answer, answer
from analysis.report.answers.next_step import _can_take_turns
from analysis.report.document import document
from analysis.report.gate import answer as gate_answer
from analysis.report.gate import gate_document
from analysis.report.sweeps.by import by_answer, by_document
from commands.run.command import run as run_command
from commands.run.request_command import request_of
from scenarios.command import Command
from scenarios.shared import Shared
from suite.records.usage import Conditions
from suite.request.next_step import NextStep, bench
from suite.request.repetitions import MARGIN
from suite.request.request import DEFAULT_MARGIN, RunRequest, until_decided
from suite.results.store import PLAN
from tests.analysis.conftest import Save, bench_compare, json_of, known, measured, printed
from tests.analysis.test_stored_runs import AFTER, BEFORE, NAMES, RUNS, TOGETHER
from tests.jobs import identity
from tests.suite.conftest import make_plan

BUSY = Conditions(interval_s=20, other_cpu_s=0.11 * 2 * 20)
"""More other work on the CPUs than the bound allows."""


@dataclass(frozen=True)
class Forged:
    """A run with chosen numbers and a plan, as a request asks for it."""

    save: Save
    name: str = "run"

    @property
    def directory(self) -> Path:
        return self.save.path / self.name

    def plan(self, blocks: int, targets: Sequence[str], given: Mapping[str, object]) -> None:
        request = RunRequest.of({"target": targets, **given})
        plan = make_plan(
            request=request,
            targets=tuple(targets),
            profile=request.measurement.profile,
            blocks=blocks,
            margin=request.repetitions.margin_share,
            run_id=identity(self.name),
        )
        (self.directory / PLAN).write_text(plan.model_dump_json())

    def measure(
        self,
        factor: float,
        blocks: int,
        *,
        noise: float = 0.004,
        seed: int = 1,
        targets: Sequence[str] = ("bare-metal", "container"),
        given: dict[str, object] | None = None,
        **changes: Any,
    ) -> "Forged":
        """Save the trials of targets whose throughput is that of bare metal times ``factor``."""
        rng = np.random.default_rng(seed)
        for block in range(blocks):
            for target in targets:
                typical = 10 if target == "bare-metal" else 10 * factor
                speed = typical * math.exp(rng.normal(0, noise))
                self.save(self.name, block=block, target=target, **measured(speed) | changes)
        self.plan(blocks, targets, given or {})
        return self

    def answer(self) -> Answer:
        return answer(compare(load([self.directory])))


@pytest.fixture
def forged(save: Save) -> Forged:
    return Forged(save)


def typed(line: str) -> list[str]:
    """Return the words that bash gives ``bench`` for a line that is pasted as it was printed."""
    defined = "bench() { printf '%s\\0' bench \"$@\"; }\n"
    done = subprocess.run(["bash", "-c", defined + line], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.split("\0")[:-1]


def parses(argv: Sequence[str]) -> None:
    """Take the words as ``bench`` does, and start nothing."""
    command: click.Command = cli.main
    context, words = click.Context(command, info_name=argv[0], **command.context_settings), [*argv[1:]]
    while isinstance(command, click.Group):
        name = words.pop(0)
        command = known(command.get_command(context, name))
        context = click.Context(command, parent=context, info_name=name)
    with command.make_context(context.info_name, words, parent=context.parent):
        pass


def pasted(shown: str, step: NextStep) -> None:
    """Hold what a terminal shows against the step: its line alone is what bash takes."""
    (line,) = (line for line in shown.splitlines() if line.strip().startswith("bench "))
    assert line == str(step)
    assert typed(line) == [*step.argv]


def names_no_place_holder(step: NextStep) -> None:
    assert not re.search(r"\b(RUN|FILE|DIR|TIME)\b|the same|both runs|quieter", str(step))
    parses(step.argv)


KINDS = ("command", "distributed-host", "failed", "probe", "serve", "shared", "sweep", "synthetic")
"""A stored run of each kind of answer; the others, and those that are compared together, are tried thoroughly."""
STORED = [name if name in KINDS else pytest.param(name, marks=pytest.mark.thorough) for name in (*NAMES, *TOGETHER)]


@pytest.mark.parametrize("name", STORED)
def test_the_next_step_of_every_stored_run_is_what_bash_and_bench_take_at_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RUNS)
    comparison = compare(audited(load([Path(one) for one in TOGETHER.get(name, (name,))])))
    if step := answer(comparison).next:
        names_no_place_holder(step)
        pasted(printed(document(comparison), 80), step)
        assert {*map(str, comparison.places)} & {*step.argv} or step.argv[:2] == ("bench", "run")
    assert json_of(comparison)["answer"]["next"] == (
        None if step is None else {**vars(step), "argv": [*step.argv], "command": step.command}
    )


def test_a_gate_and_values_of_a_key_have_a_step_that_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RUNS)
    old, new = (load([Path(name)]) for name in (BEFORE, AFTER))
    for bound in (0.0001, 0.05, 0.9):
        found = regress(old, new, bound)
        if step := gate_answer(found).next:
            names_no_place_holder(step)
            pasted(printed(gate_document(found), 80), step)
    comparison = compare_by(load([Path("synthetic-podman"), Path("synthetic-docker")]), ("engine",), ())
    if step := by_answer(comparison).next:
        names_no_place_holder(step)
        pasted(printed(by_document(comparison), 80), step)


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ("blocks", "run --continue {new} --blocks 8"),
        ("failed", "results show {new}"),
        ("target", "run --target bare-metal --target container"),
    ],
)
def test_an_incomplete_gate_is_completed_and_shows_failures_only_if_there_are_any(
    lacks: str, words: str, save: Save
) -> None:
    Forged(save, "old").measure(0.9, 8, given={"blocks": 8})
    targets = ("bare-metal", "container") if lacks == "blocks" else ("bare-metal",)
    blocks = 6 if lacks == "blocks" else 8
    new = Forged(save, "new").measure(0.9, blocks, targets=targets, given={"blocks": blocks})
    if lacks == "failed":
        save("new", target="container", failed="out of memory")
    judged = regress(save.load("old"), save.load("new"), 0.9)
    step = known(gate_answer(judged).next)
    assert judged.outcome == "incomplete"
    assert step.command.startswith("bench " + words.format(new=new.directory)), step
    parses(step.argv)


@pytest.mark.parametrize(
    "form",
    [(), ("--csv",), ("--markdown",), ("--json",), pytest.param(("--explain",), marks=pytest.mark.thorough)],
)
def test_every_form_has_the_same_step(forged: Forged, form: tuple[str, ...]) -> None:
    forged.measure(0.98, 10, noise=0.03)
    step = known(forged.answer().next)
    result = bench_compare(forged.directory, "--margin", "2%", "--force", *form)
    if form == ("--json",):
        assert json.loads(result.stdout)["answer"]["next"]["argv"] == [*step.argv]
    else:
        assert str(step) in result.output.splitlines()


def test_the_page_has_the_same_step(forged: Forged) -> None:
    forged.measure(0.98, 10, noise=0.03)
    assert f'<pre tabindex="0">{forged.answer().next}</pre>'.replace("#", "#") in forged.save.page(margin=0.02)


@pytest.mark.parametrize(
    ("blocks", "noise", "changes", "step"),
    [
        (20, 0.004, {}, "compare {run} --explain  # where the time goes"),
        (3, 0.004, {}, r"run --continue {run} --blocks 5  # at least 2 more blocks, about .*"),
        # Of 42, trimming leaves out the six that were disturbed.
        (6, 0.004, {"conditions": BUSY}, r"run --continue {run} --blocks 42  # at least 36 more blocks, about \d+ min"),
        (10, 0.03, {}, r"run --continue {run} --blocks \d+  # [\d,]+ more blocks?, about .*"),
    ],
)
def test_a_run_is_explained_or_extended(
    blocks: int, noise: float, changes: dict[str, Any], step: str, forged: Forged
) -> None:
    factor = 0.98 if noise > 0.01 else 0.8
    found = forged.measure(factor, blocks, noise=noise, **changes).answer().next
    assert re.fullmatch("bench " + step.format(run=re.escape(str(forged.directory))), str(found)), found


def test_what_no_number_of_blocks_decides_is_measured_in_turns(forged: Forged) -> None:
    found = forged.measure(0.9802, 10, noise=0.1, given={"blocks": 10}).answer().next
    assert str(found).partition(", ")[0] == (
        "bench run --target bare-metal --target container  # until decided at 5 %"
    ), "turns, the budget and the margin are what a run chooses by itself"


def test_turns_are_proposed_to_what_can_take_them() -> None:
    command = RunRequest.of({"scenario": "command", "command": "python train.py"})
    assert _can_take_turns(Command, command)
    assert not _can_take_turns(Command, command.changed(throughput="auto")), "its own clock counts the stops"
    assert not _can_take_turns(Shared, RunRequest.of({"scenario": "shared"}))


def test_what_is_undecided_says_at_which_wider_margin_it_is_decided_as_a_comparison_there_does(forged: Forged) -> None:
    forged.measure(0.98, 10, noise=0.03)
    found = forged.answer()
    assert found.rows[0].word == "undecided"
    (wider,) = re.findall(r"already equivalent at (\d+) %", found.why)
    records = load([forged.directory])
    words = {margin: answer(compare(records, margin=margin / 100)).rows[0].word for margin in (2, 3, 5, 10)}
    assert next(margin for margin, word in words.items() if word == "equivalent") == int(wider)
    assert "already" not in Forged(forged.save, "far").measure(0.5, 3, noise=0.4).answer().why


def test_a_proposed_run_is_not_decided_by_default_where_the_default_margin_is_decided_already(forged: Forged) -> None:
    forged.measure(0.9802, 20, noise=0.03)
    found = forged.answer()
    assert "already equivalent at 5 %" in found.why
    assert known(found.next).command.endswith("--target container --margin 2%"), found.next


@pytest.mark.parametrize(
    ("factor", "noise", "margin", "words"),
    [
        (0.9802, 0.1, 0.02, "--target container --margin 2%"),
        (0.9802, 0.1, None, "--target container"),
        (0.8, 0.004, 0.02, "--margin 2% --explain"),
        (0.8, 0.004, None, "{run} --explain"),
    ],
)
def test_a_proposal_repeats_the_margin_that_a_comparison_was_given(
    forged: Forged, factor: float, noise: float, margin: float | None, words: str
) -> None:
    forged.measure(factor, 10, noise=noise)
    step = answer(compare(load([forged.directory]), margin=margin)).next
    assert known(step).command.endswith(words.format(run=forged.directory)), step


CHOSEN = {"until": "decided", "margin": "5%", "budget": "10m", "design": "alternating"}
"""The options that a run has chosen by itself, as its plan holds them."""


@pytest.mark.parametrize(
    ("given", "margin", "words"),
    [
        (CHOSEN, 0.05, ""),
        (CHOSEN, 0.1, "--margin 10%"),
        (CHOSEN | {"max_blocks": 20}, 0.05, ""),
        ({}, 0.02, ""),
        ({"margin": "2%"}, 0.02, "--margin 2%"),
        ({"detect": "2%"}, 0.02, ""),
        (CHOSEN | {"rounds": 30}, 0.05, "--design alternating --rounds 30"),
        ({"design": "sequential"}, 0.02, "--design sequential"),
        ({"design": "alternating", "ablate": ("seccomp",)}, 0.02, "--design alternating"),
        ({"design": "alternating", "scenario": "probe"}, 0.02, "--design alternating"),
    ],
)
def test_a_proposed_run_names_no_more_than_it_must(given: dict[str, object], margin: float, words: str) -> None:
    request = RunRequest.of({"target": ("bare-metal", "container"), **given})
    chosen = margin if "margin" in given or margin != MARGIN else DEFAULT_MARGIN
    command = " ".join(until_decided(request, chosen).command())
    assert re.findall(r"--(?:design|rounds|margin|until|budget|max-blocks|detect) \S+", command) == re.findall(
        r"--\S+ \S+", words
    )


def test_a_smoke_run_where_bare_metal_alone_is_measured_is_repeated_with_what_the_machine_has(forged: Forged) -> None:
    given = {"profile": "smoke", "blocks": 1}
    forged.measure(0.8, 1, targets=("bare-metal",), given=given, profile="smoke")
    assert known(forged.answer().next).argv == ("bench", "run")
    both = Forged(forged.save, "both").measure(0.8, 1, targets=("bare-metal", "vm"), given=given, profile="smoke")
    both.save("both", target="vm", profile="smoke", substitutes=("accelerator:tcg",))
    assert known(both.answer().next).argv == ("bench", "run")


def test_a_target_that_failed_is_shown_and_a_run_without_bare_metal_gets_it(forged: Forged) -> None:
    forged.measure(0.8, 5, targets=("bare-metal",))
    assert known(forged.answer().next).argv[:2] == ("bench", "run")
    forged.save(target="vm", failed="no memory")
    assert str(forged.answer().next) == f"bench results show {forged.directory}  # each failure in full"
    alone = Forged(forged.save, "alone").measure(0.8, 5, targets=("container-vm",), given={"scenario": "distributed"})
    added = known(alone.answer().next).argv
    assert [word for flag, word in itertools.pairwise(added) if flag == "--target"] == [
        "bare-metal",
        "container-vm",
    ]


def test_a_smoke_run_is_measured_without_the_targets_that_only_prove_their_path(forged: Forged) -> None:
    everywhere = ("bare-metal", "container", "vm")
    given = {"profile": "smoke", "blocks": 1}
    forged.measure(0.8, 1, targets=everywhere, given=given, profile="smoke")
    forged.save(target="vm", profile="smoke", substitutes=("accelerator:tcg",))
    argv = known(forged.answer().next).argv
    assert [word for flag, word in itertools.pairwise(argv) if flag == "--target"] == ["bare-metal", "container"]
    assert not {"--profile", "--blocks"} & {*argv}


def test_nothing_is_proposed_that_no_command_settles(save: Save) -> None:
    save("without-plan")
    save("without-plan", target="container")
    assert answer(save.compare("without-plan")).next is None, "nothing says what was asked for"
    assert bench("compare", Path("two\nlines"), decides="") is None, "a shell takes no command of two lines"
    assert bench("compare", Path("\u3000 \U0001f469\u200d\U0001f4bb"), decides="") is not None, "and wide spaces"
    step = known(bench("compare", Path("-run"), decides="all"))
    assert step.command == "bench compare ./-run"


def test_the_two_sides_of_a_gate_are_extended_one_after_the_other(save: Save) -> None:
    for seed, name in enumerate(("old", "new"), start=5):
        Forged(save, name).measure(0.9, 6, noise=0.1, seed=seed)
    old, new = save.path / "old", save.path / "new"
    first = known(gate_answer(regress(save.load("old"), save.load("new"), 0.05)).next).argv
    assert first[:4] == ("bench", "run", "--continue", str(new))
    wanted = int(first[5])
    Forged(save, "new").measure(0.9, wanted, noise=0.1, seed=6)
    second = known(gate_answer(regress(save.load("old"), save.load("new"), 0.05)).next).argv
    assert second[:4] == ("bench", "run", "--continue", str(old))


def obeyed(forged: Forged, step: NextStep, name: str, *, noise: float) -> Forged:
    """Do as a step says, with numbers in place of trials: begin a run that it asks for, or extend the one it names."""
    words = typed(str(step))
    assert words[:2] == ["bench", "run"]
    request = request_of(run_command, words[2:])
    continued = "--continue" in words
    following = forged if continued else Forged(forged.save, name)
    blocks = request.repetitions.blocks or 12
    given = {name: value for name, value in request.given().items() if name not in ("target", "scenario")}
    return following.measure(0.8, blocks, noise=noise, given=given, profile=request.measurement.profile)


@pytest.mark.parametrize("noise", [0.004, 0.03])
def test_three_steps_lead_from_a_smoke_run_to_a_verdict(forged: Forged, noise: float) -> None:
    now = forged.measure(0.8, 1, noise=noise, given={"profile": "smoke", "blocks": 1}, profile="smoke")
    for number in range(4):
        found = now.answer()
        if found.rows[0].word == "slower":
            break
        now = obeyed(now, known(found.next), f"step-{number}", noise=noise)
    assert (found.rows[0].word, number <= 3) == ("slower", True)
    assert "--explain" in known(found.next).argv


def test_a_ratio_at_its_margin_is_extended_until_a_wider_margin_decides(forged: Forged) -> None:
    serving = {"scenario": "serve", "margin": "5%"}
    run = forged.measure(0.95, 8, noise=0.06, seed=3, given={**serving, "blocks": 8}, scenario="serve")
    open_at_its_margin = run.answer()
    (claim,) = open_at_its_margin.claims
    assert claim.word == "undecided"
    assert claim.lacking_blocks is None
    step = known(open_at_its_margin.next)
    assert "which probably decide at 10 %" in step.remark
    names_no_place_holder(step)
    blocks = int(step.argv[step.argv.index("--blocks") + 1])
    forged.measure(0.95, blocks, noise=0.06, seed=3, given={**serving, "blocks": blocks}, scenario="serve")
    assert forged.answer().claims[0].equivalent_at == 0.1
