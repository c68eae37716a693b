"""``bench data``: the data sets that the real scenario trains on."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from commands.lazy import SuggestingGroup
from commands.output import Output
from commands.paths import UserPath
from commands.run.options import choice, number
from provisioning import data_device
from provisioning.paths import home, mark_empty
from scenarios.datasets.generated import (
    USUAL_FORMAT,
    SetManifest,
    data_folder,
    generated_sets,
    has_images,
    newest,
)
from scenarios.datasets.resolve import resolve
from scenarios.datasets.writer import make, verify
from suite.errors import BenchError
from suite.job.datasets import GENERATED, SYNTHETIC, parse_data
from suite.part import Part
from suite.registries import DATA_KINDS
from suite.untrusted.console import PlainConsole
from worker.data.kinds.kind import PICTURE_SIZES

SHOWN = 50
USUAL_IMAGES = 1000


class DescribedSet(Part):
    """A generated set: what decides its bytes, and their number and digest."""

    directory: str
    format: str
    seed: int
    size: str | None = None
    images: int
    classes: int | None = None
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, directory: Path, manifest: SetManifest) -> Self:
        fields = manifest.model_dump(exclude={"files", "schema_version"})
        return cls(directory=str(directory), **fields)


class MadeOutput(Output, DescribedSet):
    """The set that was made."""


class VerifiedOutput(Output):
    """The differences of a set from what was made; none where it is whole."""

    directory: str
    differences: list[str]


class SetsOutput(Output):
    """The generated sets."""

    sets: list[DescribedSet]


@click.group(cls=SuggestingGroup)
def data() -> None:
    """Generate data sets in the formats of well-known ones.

    Use your copy of ImageNet, CIFAR-10, MNIST, CelebA or UCF101 directly: bench run --data imagenet:DIR.

    \b
    Examples:
      bench data make --images 1000
      bench data verify
      bench data disk --device /dev/nvme1n1
      bench data list
    """


@data.command("make")
@number("--images", default=USUAL_IMAGES, show_default=True, help="Number of training images.")
@click.option(
    "--format",
    "name",
    default="imagefolder",
    callback=choice(DATA_KINDS.names()),
    show_default=True,
    help="imagefolder, or one with the layout of the original and a small test set: cifar10, mnist, celeba, frames.",
)
@click.option(
    "--size",
    callback=choice(PICTURE_SIZES),
    help="Image size of an imagefolder. imagenet: about 500x375 and 110 kB, the default. small: about 64x48 and 2 kB, "
    "for tests and emulated VMs.",
)
@number("--classes", help="Most classes of an imagefolder. Default: 1000.")
@number("--seed", default=0, show_default=True, help="Random seed of the pictures.")
@number(
    "--workers", help="Number of processes that generate images; the files do not depend on it. Default: one per CPU."
)
@click.option(
    "--out",
    type=UserPath(),
    help="Directory. Default: data/SIZE-IMAGES or data/FORMAT-IMAGES in VIRTBENCH_HOME.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def data_make(
    images: int,
    name: str,
    size: str | None,
    classes: int | None,
    seed: int,
    workers: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Generate a data set. The same set, if it is there, is left as it is.

    \b
    Examples:
      bench data make --images 1000
      bench data make --images 1281167 --out /fast/imagenet-like
      bench data make --images 64 --size small --classes 8 --json
      bench data make --format mnist --images 60000
    """
    kind = size or (PICTURE_SIZES[0] if DATA_KINDS.get(name).sized else name)
    directory = out.absolute() if out else _own_directory(kind, images)
    note = partial(click.echo, err=True)
    with _progress("drawing") as progress:
        generated = make(directory, images, size, seed, classes, workers, progress, note, name)
    if as_json:
        MadeOutput.of(directory, generated).tell()
    else:
        click.echo(directory)
        where = "" if out is None else f":{directory}"
        click.echo(f"train on it with: bench run --scenario real --data generated{where}", err=True)


def _own_directory(kind: str, images: int) -> Path:
    """Return the directory of a set in VIRTBENCH_HOME, which is made and marked as the suite's own."""
    for folder in (home(), data_folder(home())):
        folder.mkdir(parents=True, exist_ok=True)
        mark_empty(folder)
    return (data_folder(home()) / f"{kind}-{images}").absolute()


@dataclass(frozen=True)
class MissingSet:
    """A data set that is generated before it is read."""

    format: str
    images: int
    directory: Path | None
    """None for that of the usual imagefolder in VIRTBENCH_HOME."""

    @property
    def command(self) -> str:
        words = ["bench", "data", "make"]
        if self.directory:
            words += ["--format", self.format, "--out", str(self.directory)]
        return shlex.join([*words, "--images", str(self.images)])

    def make(self) -> None:
        """Generate it. Raises BenchError."""
        note = partial(click.echo, err=True)
        note(f"first: {self.command}")
        if self.directory:
            note("its images are drawn: a copy of the original in this directory would be measured instead")
        directory = self.directory or _own_directory(PICTURE_SIZES[0], self.images)
        with _progress("drawing") as progress:
            make(directory.absolute(), self.images, progress=progress, note=note, name=self.format)


def missing_set(data: str, images: int) -> MissingSet | None:
    """Return the set that ``--data`` names, of so many images at least, if it is not there. Raises RequestError."""
    kind, path = parse_data(data)
    if kind == SYNTHETIC:
        return None
    if path is None:
        return None if has_images(home(), images) else MissingSet(USUAL_FORMAT, images, None)
    directory = Path(path).expanduser()
    if directory.exists():
        return None
    drawn = USUAL_FORMAT if kind == GENERATED else kind
    return MissingSet(drawn, max(images, USUAL_IMAGES), directory)


@data.command("verify")
@click.argument("directory", required=False, type=UserPath())
@number("--workers", help="Number of processes that read. Default: one per CPU.")
@click.option("--json", "as_json", is_flag=True, help="Print directory and differences as JSON.")
def data_verify(directory: Path | None, workers: int | None, as_json: bool) -> None:
    """Hash the files of a data set again and list differences.

    Default: the newest set.

    \b
    Examples:
      bench data verify
      bench data verify /fast/imagenet-like --json
    """
    data_set = directory or newest(home())
    with _progress("hashing") as progress:
        differences = verify(data_set, workers, progress)
    if as_json:
        VerifiedOutput(directory=str(data_set.absolute()), differences=differences).tell()
    elif differences:
        click.echo("\n".join(differences[:SHOWN]))
    else:
        click.echo(f"{data_set} is whole")
    if differences:
        raise BenchError(
            f"{data_set}: {len(differences)} differences",
            remedy="remove the directory, and give the bench data make that made it again",
        )


@data.command("disk")
@click.option("--device", required=True, help="An empty block device, such as /dev/nvme1n1 or /dev/sdb1.")
@click.option("--data", "text", default="generated", show_default=True, help="The data set, such as imagenet:DIR.")
def data_disk(device: str, text: str) -> None:
    """Write a data set to a block device for bench run --data-disk.

    A device that is in use or carries any file system, partition table or other signature is refused.

    \b
    Examples:
      bench data disk --device /dev/nvme1n1 --data imagenet:/data/ilsvrc
      bench data disk --device /dev/sdb1
    """
    note = partial(click.echo, err=True)
    name, dataset = resolve(text, home(), note=note)
    data_device.write(device, dataset, note)
    source = f"{name}:{dataset.directory}"
    click.echo(f"train on it with: bench run --scenario real --data {source} --data-disk {device}", err=True)


@data.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def data_list(as_json: bool) -> None:
    """List generated data sets, newest first.

    \b
    Examples:
      bench data list
      bench data list --json
    """
    stored = generated_sets(home())
    if as_json:
        described = [DescribedSet.of(stored_set.directory, stored_set.manifest) for stored_set in stored]
        SetsOutput(sets=described).tell()
        return
    for stored_set in stored:
        manifest = stored_set.manifest
        content = f"{manifest.images:,} images, {manifest.size or manifest.format}"
        click.echo(f"{stored_set.directory}  {content}  {manifest.size_bytes / 1e6:,.1f} MB")


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, and a line at every tenth elsewhere."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=PlainConsole(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, of: bar.update(task, completed=done, total=of)
        return
    shown = {0}

    def tell(done: int, of: int) -> None:
        tenth = done * 10 // of
        if tenth not in shown:
            shown.add(tenth)
            click.echo(f"{what}: {done} of {of}", err=True)

    yield tell
