"""``bench machines``: machines that a cloud lends, for as long as they are needed."""

from functools import partial
from pathlib import Path

import click

from commands.lazy import SuggestingGroup
from commands.output import Output
from commands.paths import UserPath
from commands.run.options import choice
from commands.run.request_command import parameter_of
from provisioning import ledger
from provisioning.clouds.base import CloudError, hired
from provisioning.clouds.hire import INVENTORY, MachineOrder, hired_machines
from suite.errors import BenchError, RequestError, nearest
from suite.part import Part
from suite.registries import CLOUDS
from suite.request.next_step import LABEL, NextStep
from suite.request.option import Option


@click.group(cls=SuggestingGroup)
def machines() -> None:
    """Hire machines from a cloud, list them, and give them back. They cost money until they are down.

    \b
    Examples:
      bench machines up --from nova --cloud lab --image debian-12 --flavor b8 --network lab --key me --count 3
      bench machines down --all
    """


def _cloud_options() -> list[click.Parameter]:
    """Return the options of all clouds; the help of each names the clouds that have it."""
    declared: dict[str, tuple[click.Option, dict[str, list[str]]]] = {}
    failures = CLOUDS.failures()
    for cloud in CLOUDS:
        if cloud in failures:
            continue
        fields = CLOUDS.get(cloud).options.model_fields
        for key, field in fields.items():
            option = Option(key, cloud, field)
            _, texts = declared.setdefault(option.name, (parameter_of(option), {}))
            texts.setdefault(option.help(), []).append(cloud)
    parameters: list[click.Parameter] = []
    for parameter, texts in declared.values():
        sentences = [f"{text} [{', '.join(clouds)}]" for text, clouds in texts.items()]
        parameter.help = " ".join(sentences)
        parameters.append(parameter)
    return parameters


class HiredMachine(Part):
    """A machine that is hired: ``state`` is the cloud's word, or why there is none."""

    name: str
    source: str
    cloud: str
    state: str


class HiredOutput(Output):
    """The machines that are hired now."""

    machines: list[HiredMachine]


@machines.command(params=_cloud_options())
@click.option("--from", "source", required=True, callback=choice([*CLOUDS]), help=f"Cloud: {', '.join(CLOUDS)}.")
@click.option("--cloud", required=True, help="Its name in clouds.yaml.")
@click.option("--within", help="Limit until all are ready, or else removed. Default: 15m, or 1h for ironic.")
@click.option(
    "--out",
    type=UserPath(),
    default="machines",
    show_default=True,
    help=f"Directory for {INVENTORY}.",
)
def up(source: str, cloud: str, within: str | None, out: Path, **options: object) -> None:
    """Make machines, and write an inventory once SSH answers.

    They stay until down removes them.

    If one does not become ready, or after Ctrl-C, all are removed; after a kill bench clean removes them.

    \b
    Examples:
      bench machines up --from nova --cloud lab --image debian-12 --flavor b8 --network lab --key me --count 3
      bench machines up --from ironic --cloud lab --resource-class r7 --image deb --network lab --public-key id.pub
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    order = MachineOrder.of(f"--from {source}", source, cloud, within, chosen)
    note = partial(click.echo, err=True)
    with hired_machines(order, out, note, kept=True):
        pass
    run = ("bench", "run", "--inventory", str(out / INVENTORY))
    measuring = NextStep(run, "at the end: bench machines down --all")
    click.echo(f"{LABEL}:\n{measuring}")


@machines.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_machines(as_json: bool) -> None:
    """List the machines that are hired now, with their state in the cloud.

    \b
    Examples:
      bench machines list
      bench machines list --json
    """
    listed = []
    for entry in ledger.kept():
        machine_name = hired(entry)
        machine = HiredMachine(
            name=machine_name.name,
            source=machine_name.source,
            cloud=machine_name.cloud,
            state=machine_name.state(),
        )
        listed.append(machine)
    if as_json:
        HiredOutput(machines=listed).tell()
        return
    for machine in listed:
        click.echo(f"{machine.name}: {machine.source}, cloud {machine.cloud}: {machine.state}")
    if not listed:
        click.echo("no machine is hired", err=True)


@machines.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="All machines that are hired now.")
def down(names: tuple[str, ...], everything: bool) -> None:
    """Remove machines in the cloud, and wait until they are gone.

    \b
    Examples:
      bench machines down virtbench-0123456789ab
      bench machines down --all
    """
    removals = {}
    for entry, remove in ledger.kept().items():
        removals[hired(entry).name] = remove
    if bool(names) == everything:
        raise RequestError("name machines, or give --all", remedy="bench machines list shows them")
    for name in names:
        if name not in removals:
            raise RequestError(f"no machine {name!r} is hired", remedy=nearest(name, [*removals]))
    stuck = []
    if not removals:
        click.echo("no machine is hired", err=True)
    for name in names or removals:
        try:
            removals[name]()
            click.echo(f"removed: {name}")
        except BenchError as error:
            stuck.append(error)
    if stuck:
        messages = (error.message for error in stuck)
        raise CloudError("; ".join(messages), remedy=stuck[0].remedy)
