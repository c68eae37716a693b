"""The page of results, and the command on it that repeats a run: given to bench again, it makes an equal plan."""

import html.parser
import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.report.page import write_report
from analysis.report.provenance import provenance, run_command
from commands.run.command import run
from commands.run.request_command import request_of
from suite.errors import BenchError
from suite.job.distributed import DistributedJob, MachineSpec
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import PROFILES
from suite.plan import Plan
from suite.request.request import RunRequest
from suite.results.store import Run
from tests.analysis.conftest import Save
from tests.jobs import plan_of


def sweep(save: Save, blocks: int = 6, models: tuple[str, ...] = ("resnet50", "alexnet")) -> None:
    rng = np.random.default_rng(0)
    for block in range(blocks):
        for model in models:
            for target, factor in (("bare-metal", 1.0), ("container", 1.0), ("vm", 0.9)):
                speed = 10 * factor * math.exp(rng.normal(0, 0.002))
                save(block=block, model=model, target=target, throughput_per_s=speed, elapsed_s=200 / speed)


class Links(html.parser.HTMLParser):
    """Everything that a browser would fetch, the ids, and whether each element that opens closes."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.alternatives: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)
        if tag == "img":
            self.alternatives.append(values.get("alt"))
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_needs_no_network_begins_with_the_answer_and_is_the_same_each_time(save: Save) -> None:
    sweep(save)
    text = save.page(drawn=True)
    found = Links()
    found.feed(text)
    assert found.open == []
    assert all(target.startswith(("data:", "#")) for target in found.fetched)
    assert [part for part in ("<script", "url(") if part in text] == []
    assert [bool(text) for text in found.alternatives] == [True] * 5
    assert len(set(found.ids)) == len(found.ids)
    for sentence in (
        "resnet50, container",
        "within the margin of 2 %",
        "beyond the margin of 2 %",
        "with opening, a trial takes 2.2",
        "noise floor (bare metal across 6 blocks)",
        "How to read the numbers",
        "bench compare",
    ):
        assert sentence in text
    assert text.index("x bare metal") < text.index("why:") < text.index("<h2")
    assert save.page(drawn=True) == text


def test_the_page_of_one_comparison_begins_with_what_is_not_measured_and_why(tmp_path: Path, save: Save) -> None:
    for target in ("bare-metal", "vm"):
        save(target=target, weights_sha256="a" * 64)
    (tmp_path / "run/plan.json").write_text("{}")
    text = save.page()
    words = ("not yet measured: 1 block of 5", "at least 5 blocks are needed", "the same weights")
    places = [text.index(one) for one in words]
    assert places == sorted(places)
    assert [text.count(one) for one in words] == [1] * 3
    assert '<small class="verdict ">no verdict</small>' in text


def test_what_records_hold_is_text_and_never_markup(save: Save) -> None:
    save()
    save(target="vm", failed="<img src=x onerror=alert(1)>", substitutes=["<b>bold</b>"])
    text = save.page()
    assert [words in text for words in ("&lt;img src=x", "<img src=x", "<b>")] == [True, False, False]


def test_a_single_trial_makes_a_page_that_says_what_is_missing(save: Save) -> None:
    save(target="vm")
    assert "no bare-metal trial to compare with" in save.page()


def test_a_forced_comparison_is_marked_on_the_page(save: Save) -> None:
    save()
    save(target="vm", capability="AVX512")
    assert "no ratio is formed: CPU capability AVX512 against AVX2" in save.page()
    assert "forced: CPU capability AVX512 against AVX2" in save.page(force=True)


def test_a_page_that_cannot_be_written_is_one_clear_error(tmp_path: Path, save: Save) -> None:
    save()
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError):
        write_report(save.load(), tmp_path / "file" / "report.html")


def test_no_number_on_the_page_is_missing_or_infinite(save: Save) -> None:
    sweep(save, 2)
    save(block=9, target="container-vm", failed="no")
    visible = re.sub(r"data:[^\"]*", "", save.page(drawn=True))
    assert not re.search(r"\b(nan|inf|None)\b", visible)


# tests/commands/test_cli.py repeats runs of every scenario, as far as no record is needed.
MACHINES = tuple(
    MachineSpec(name=name, address="10.0.0.1", interface="eth0", cpus=cpus)
    for name, cpus in (("a", (4, 5)), ("b", (0, 1)))
)
ON_MACHINES = DistributedJob(
    strategy="parameter-server-async", workers=1, servers=1, network="bridge", machines=MACHINES, comm_timeout_s=90
)


def plan(**changes: Any) -> Plan:
    usual: dict[str, Any] = {
        "targets": ("container",),
        "models": ("resnet50",),
        "profile": "smoke",
        "sizes": PROFILES["smoke"].sizes_of("resnet50"),
        "envelope": Envelope(cpus=(4, 5), memory_bytes=2 * GIB, threads=2),
        "trial_timeout_s": PROFILES["smoke"].trial_timeout_s,
    }
    return plan_of(**(usual | changes))


def parsed(made: Plan) -> RunRequest:
    """Return the request that ``bench run`` reads from the command."""
    bench, command, *words = run_command(made)
    assert (bench, command) == ("bench", "run")
    return request_of(run, words)


def test_pods_are_repeated_with_so_many_cpus_as_the_kubelet_gave() -> None:
    given = Envelope(cpus=(4, 5), memory_bytes=2 * GIB, threads=2, node_chosen=True)
    assert parsed(plan(scenario="synthetic", engine="kubernetes", envelope=given)).envelope.cpus == "2"


def test_what_was_asked_for_is_repeated_with_what_it_came_to_and_so_many_cpus_of_each_machine() -> None:
    asked = {
        "scenario": "distributed",
        "inventory": Path("/my/hosts.toml"),
        "target": "container",
        "until": "2%",
        "max_blocks": 9,
        "budget": "2h",
        "trial_timeout": 77,
        "isa": "native",
        "comm_timeout": 90,
    }
    made = plan(scenario="distributed", request=RunRequest.of(asked), distributed=ON_MACHINES, blocks=7, engine="runc")
    assert parsed(made).given() == {
        **{name: asked[name] for name in ("scenario", "inventory", "trial_timeout", "isa", "comm_timeout")},
        "target": ("container",),
        "model": ("resnet50",),
        "engine": "runc",
        "blocks": 7,
        "warmup_blocks": 0,
        "cpus": "2",
        "memory": str(2 * GIB),
        "threads": 2,
    }


def test_a_report_has_the_command(tmp_path: Path, save: Save) -> None:
    save()
    made = plan(scenario="synthetic", request=RunRequest.of({"isa": "native", "target": "container"}))
    Run(tmp_path / "run").begin(made)
    (found,) = provenance(save.load())
    assert found.commands[0] == shlex.join(run_command(made))
    assert "--isa native" in found.commands[0]
