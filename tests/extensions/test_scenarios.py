"""A scenario that another package adds, with options of its own, from the request to the comparison."""

import json
import re
from typing import Any

import pytest

from tests.extensions.conftest import Package
from tests.extensions.test_provisioning import ENGINE, package

__all__ = ["package"]
NAP = '''
from scenarios.command import Command
from suite.job.command import CommandJob
from suite.request.option import Count, OptionGroup, about, given
from suite.request.scenario import PlannedScenario


class NapOptions(OptionGroup):
    """Scenario nap."""

    naps: Count = about(2, "Naps of a trial, a tenth of a second each.")
    dreams: Count | None = about(None, "Dreams in each nap.", needs=(given("seconds_of_dreams"),))
    seconds_of_dreams: Count | None = about(None, "Seconds of a dream.", meaning=False)


class Nap(PlannedScenario):
    name = "nap"
    options = NapOptions
    workloads = trains = False
    deciding = ("elapsed",)
    unnamed = ""
    no_turns = "nobody sleeps in turns"

    def models(self, request):
        return ("nap",)

    def measure(self, trial, instances, observer, account):
        command = CommandJob(argv=("sleep", str(trial.job.options["naps"] / 10)))
        return Command(command).measure(trial.with_job(command=command), instances, observer, account)
'''
WORDS = ("--scenario", "nap", "--target", "container", "--engine", "toy", "--profile", "smoke")
HERE = ("--isa", "native", "--concurrent")


@pytest.fixture
def napping(package: Package) -> Package:
    package.add("virtbench.engines", "toy", ENGINE)
    package.add("virtbench.scenarios", "nap", NAP, "Nap")
    return package


def refused(package: Package, *words: str) -> str:
    ended = package.bench("run", *words)
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


def test_its_options_are_in_help_and_refused_elsewhere(napping: Package) -> None:
    told = napping.bench("run", "--scenario", "nap", "--help").stdout
    assert [words in told for words in ("Options of scenario nap:", "--naps")] == [True, True]
    assert "--model NAME" not in told, "it trains no workload"
    assert "--strategy" not in told, "which is another scenario's"
    assert "--naps does not apply to --scenario synthetic" in refused(napping, "--scenario", "synthetic", "--naps", "3")
    assert "--dreams needs --seconds-of-dreams" in refused(napping, *WORDS, "--dreams", "1")
    assert "nobody sleeps in turns" in refused(napping, *WORDS, "--design", "alternating")


def test_it_is_planned_forecast_measured_recorded_and_compared(napping: Package) -> None:
    foretold = napping.bench("run", *WORDS, *HERE, "--naps", "3", "--dry-run", "--json")
    job = json.loads(foretold.stdout)["plan"]["jobs"][0]
    assert (job["scenario"], job["model"], job["sizes"], job["options"]) == ("nap", "nap", None, {"naps": 3})
    runs = []
    for naps in ("3", "4"):
        out = napping.place / naps
        ended = napping.bench("run", *WORDS, *HERE, "--naps", naps, "--out", str(out))
        assert ended.returncode == 0, ended.stderr
        (path,) = out.glob("trials/*.json")
        record: dict[str, Any] = json.loads(path.read_text())
        assert (record["outcome"]["status"], record["job"]["options"]) == ("ok", {"naps": int(naps)})
        runs.append(str(out))
    # The toy engine limits nothing: the peak of memory is that of all tests.
    compared = napping.bench("compare", *runs, "--json", "--force")
    assert compared.returncode == 0, compared.stderr
    shown = json.loads(compared.stdout)
    assert {row["scenario"] for row in shown["rows"]} == {"nap"}
    assert {row["variant"] for row in shown["rows"]} == {"options.naps=3", "options.naps=4"}
    assert napping.bench("report", runs[1], "--force").returncode == 0
    assert "--naps 4" in (napping.place / "4/report.html").read_text()


def test_a_plan_file_gives_its_options(napping: Package) -> None:
    plan = napping.place / "naps.toml"
    matrix = 'scenario = ["nap"]\nnaps = [1, 2]\nengine = ["toy"]\nprofile = ["smoke"]\nisa = ["native"]'
    plan.write_text(f'name = "naps"\ntargets = ["container"]\n[matrix]\n{matrix}\n[envelope]\nmemory = "1G"\n')
    told = napping.bench("sweep", "plan", str(plan))
    assert told.returncode == 0, told.stderr
    assert len(re.findall("nap-smoke-toy", told.stdout)) >= 2


def test_an_option_of_one_name_with_another_makes_its_scenario_unusable_alone(package: Package) -> None:
    package.add("virtbench.scenarios", "nap", NAP.replace("naps: Count", "seed: Count"), "Nap")
    assert "the scenario 'nap' cannot be used: it declares the option seed a second time" in refused(
        package, "--scenario", "nap"
    )
    assert package.bench("run", "--help").returncode == 0
