"""A sweep backend that another package adds, used from the command line."""

import json

from tests.extensions.conftest import Package
from tests.suite.sweep.conftest import PLAN, Machine

BACKEND = """
from pydantic import BaseModel, ConfigDict

from commands.sweep.backends.base import Backend, SweepEnd
from commands.sweep.backends.local import run_here


class ToyOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    greeting: str


class Toy(Backend):
    options = ToyOptions
    runs_here = True

    def run(self, request):
        request.observer.note(f"toy: {request.sweep.engine.table['greeting']}")
        for block in range(request.sweep.block_count):
            made = run_here(request, [block], None).made
            request.observer.note(f"toy: block {block} has {len(made)} trials")
        return SweepEnd(made, "the toy is tired")

    def dry_run(self, request):
        request.observer.note("toy: would play")

    def queue(self, sweep, directory):
        return ["toy: the queue is empty"]

    def cancel(self, sweep, directory):
        return ["toy: cancels"]

MEMBER = Toy
"""


def test_a_sweep_backend_of_another_package(package: Package) -> None:
    package.add("virtbench.backends", "toy", BACKEND)
    machine, path = Machine(package.place), package.path
    machine.plan.write_text(f'{PLAN}\n[engine]\nkind = "toy"\ngreeting = "hello"\n')

    dry = machine.sweep_to_its_end("--dry-run", PYTHONPATH=path)
    assert (dry.returncode, machine.measured()) == (0, 0), dry.stderr
    assert "toy: would play" in dry.stderr

    ended = machine.sweep_to_its_end("--json", PYTHONPATH=path)
    assert ended.returncode == 0, ended.stderr
    assert "toy: hello" in ended.stderr
    assert "toy: block 0 has 8 trials" in ended.stderr, "with those of the warm-up block"
    assert json.loads(ended.stdout)["ended_early"] == "the toy is tired"
    assert machine.measured() == len(machine.contents()) == 16

    out = str(machine.out)
    status = json.loads(machine.run("sweep", "status", out, "--json", PYTHONPATH=path).stdout)
    assert (status["state"], status["engine"]) == ("complete", ["toy: the queue is empty"])
    assert "by the engine toy" in machine.run("sweep", "plan", str(machine.plan), PYTHONPATH=path).stdout
    assert "toy: cancels" in machine.run("sweep", "cancel", out, PYTHONPATH=path).stderr
    refused = machine.run("sweep", "stop", out, PYTHONPATH=path)
    assert (refused.returncode, "is not running" in refused.stderr) == (2, True), "as for every backend that runs here"

    machine.plan.write_text(machine.plan.read_text().replace("greeting", "greetign"))
    refused = machine.sweep_to_its_end(PYTHONPATH=path)
    assert (refused.returncode, "did you mean greeting?" in refused.stderr) == (2, True), refused.stderr
    machine.plan.write_text(machine.plan.read_text().replace('"toy"', '"tyo"'))
    refused = machine.sweep_to_its_end(PYTHONPATH=path)
    words = ("no sweep backend 'tyo'", "did you mean toy?")
    assert (refused.returncode, [text in refused.stderr for text in words]) == (2, [True, True])
