"""``bench run``: from the command line to records."""

import json
import sys
from pathlib import Path

import click

from commands.run.prepare import host_environment, observing, ready
from commands.run.request_command import RequestCommand
from commands.run.steps import steps
from provisioning import ledger
from provisioning.metrics.accounting import open_account
from suite.loop import Loop
from suite.records.record import TrialRecord
from suite.request.request import RunRequest
from suite.results.store import Run, new_run_directory


@click.command(
    cls=RequestCommand,
    params=[
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path),
            help="Directory of the run. An interrupted run there continues. Default: a new one in results/.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON."),
    ],
)
def run(request: RunRequest, out: Path | None, as_json: bool) -> None:
    """Run a scenario on targets and record every trial.

    \b
    Examples:
      bench run --target all --profile smoke
      bench run --scenario synthetic --target container-vm --model resnet50 --profile smoke
      bench run --scenario real --data generated --cache cold --target all --profile smoke
      bench run --scenario real --data imagenet:/data/ilsvrc --data-disk /dev/nvme1n1
      bench run --scenario probe --probe disk --probe memory --target all
      bench run --scenario distributed --target container --lab nodes=3,rate=1gbit
      bench run --scenario distributed --target bare-metal --target container --inventory hosts.toml
      bench run --scenario shared --target all --profile smoke
      bench run --scenario shared --target bare-metal --target container --aggressor disk --aggressor memory
      bench run --target bare-metal --target container --model all --repeat 10 --engine podman
      bench run --target bare-metal --target container --blocks 10 --ablate seccomp --ablate pinning
      bench run --target all --aa --until 2% --budget 2h
      bench run --target all --detect 2%                  (says how many blocks and hours that takes)
      bench run --target all --out results/night         (again after Ctrl-C: continues)
    """
    with observing() as observer:
        made = ready(request, observer.note)
        made.prepare(observer.note)
        store = Run(out or new_run_directory())
        loop = Loop(made.scenario, made.open_target, store, observer, host_environment, open_account)
        with store.exclusive(), ledger.holding("run-directory", str(store.directory.absolute())), store.sealed():
            made_steps = steps(made.plan, request.repetitions, store, observer.note)
            records = [record for step in made_steps for record in loop.run(step)]
    _tell(records, store, as_json=as_json)


def _tell(records: list[TrialRecord], store: Run, *, as_json: bool) -> None:
    failed = [record.trial_id for record in records if record.outcome.status == "failed"]
    if as_json:
        trials = [record.trial_id for record in records]
        told = {"run_id": store.run_id, "directory": str(store.directory), "trials": trials, "failed": failed}
        click.echo(json.dumps(told))
    else:
        click.echo(f"{len(records) - len(failed)} trials measured, {len(failed)} failed: {store.directory}", err=True)
        click.echo(f"see them with: bench compare {store.directory}", err=True)
    if failed:
        sys.exit(1)
