"""``bench image``: the userland that every target runs."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from pydantic import ConfigDict, computed_field

from commands.lazy import SuggestingGroup
from commands.output import Output
from commands.paths import UserPath
from provisioning import artefacts, ledger
from provisioning.images.adopt import adopt
from provisioning.images.build import build
from provisioning.images.image import Image, broken, difference, find, images, prune, remove
from provisioning.images.own import build_own
from provisioning.images.suite import build_suite
from suite.errors import RequestError


@click.group(cls=SuggestingGroup)
def image() -> None:
    """Build and keep the userland that every target runs.

    It is built once, and packed for all of them.

    \b
    Examples:
      bench image build
      bench image list
    """


@image.command("build")
@click.option(
    "--cuda",
    is_flag=False,
    flag_value="",
    metavar="[VERSION]",
    help="Build for NVIDIA GPUs, from docker/Dockerfile.cuda; with torch for a version of CUDA, such as 12.6, if your "
    "driver or GPU is too old for the one of its release.",
)
@click.option("--rebuild", is_flag=True, help="Run every step again, even if nothing has changed.")
@click.option("--suite", is_flag=True, help="Also build the image that runs bench itself, in pods of Kubernetes.")
@click.option(
    "--from",
    "source",
    metavar="IMAGE|DOCKERFILE|ARCHIVE|DIR",
    help="Build from your image: its name, a Dockerfile, an archive of podman save or docker save, or a directory with "
    "an OCI layout or a Dockerfile. Use it with bench run --image NAME.",
)
def image_build(cuda: str | None, rebuild: bool, suite: bool, source: str | None) -> None:
    """Build the image from docker/Dockerfile, or from yours.

    podman or docker builds it.

    \b
    Examples:
      bench image build
      bench image build --cuda --rebuild
      bench image build --cuda 12.6
      bench image build --suite
      bench image build --from ./Dockerfile
      bench image build --from localhost/my-training:latest
    """
    if suite and (cuda is not None or source):
        raise RequestError("--suite goes with the suite's own CPU image", remedy="leave --cuda and --from out")
    if cuda is not None and source:
        raise RequestError("--cuda and --from exclude each other", remedy="leave --cuda out: your image has its torch")
    if cuda and not re.fullmatch(r"\d+\.\d+", cuda):
        raise RequestError(f"--cuda {cuda!r} is not a version of CUDA", remedy="write it as 12.6, or leave it out")
    note = partial(click.echo, err=True)
    if source:
        built = build_own(source, note, rebuild=rebuild)
    else:
        built = build("cpu" if cuda is None else "cuda", note, rebuild=rebuild, cuda=cuda or "")
    click.echo(built.digest)
    if suite:
        reference, archive = build_suite(built, note)
        click.echo(f"{reference}  {archive}")


@image.command("adopt")
@click.option("--python", type=UserPath(), required=True, help="The interpreter of jobs.")
@click.option(
    "--site",
    "sites",
    type=UserPath(),
    multiple=True,
    help="A directory of Python packages outside /usr, such as site-packages of a virtual environment. Repeatable.",
)
def image_adopt(python: Path, sites: tuple[Path, ...]) -> None:
    """Use this machine's own /usr and Python as an image.

    It serves bare metal and runc, and needs neither a builder nor a mirror.

    Runs mount it read-only; a change of /usr or the packages fails trials until it is adopted again. Needs root.

    \b
    Examples:
      bench image adopt --python /usr/bin/python3
      bench image adopt --python .venv/bin/python --site .venv/lib/python3.12/site-packages
    """
    adopted = adopt(python.absolute(), sites, partial(click.echo, err=True))
    click.echo(adopted.digest)


@image.command("verify")
@click.argument("digest", required=False)
def image_verify(digest: str | None) -> None:
    """Hash every file of an image again and list differences. Default: the newest image.

    \b
    Examples:
      bench image verify
      bench image verify 1f0c5a2b77d1
    """
    image = find(digest)
    differences = image.verify()
    for line in differences[:50]:
        click.echo(line)
    if differences:
        raise broken(image, f"{len(differences)} differences")
    click.echo(f"{image.digest} is whole")


class ListedImage(Image):
    """An image in the JSON of the list, with the directory of its unpacked tree, which follows from its digest."""

    model_config = ConfigDict(extra="ignore")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tree(self) -> Path:
        return super().tree


class ImagesOutput(Output):
    """The images that were built, newest first."""

    images: list[ListedImage]


@image.command("diff")
@click.argument("one")
@click.argument("other")
def image_diff(one: str, other: str) -> None:
    """List the differences of two images.

    They are held against each other by Debian package versions and paths. Exit code 1 if there are any.

    \b
    Examples:
      bench image diff 1f0c5a2b77d1 bb2ac018df86
    """
    differences = difference(find(one), find(other))
    for line in differences:
        click.echo(line)
    if differences:
        raise click.exceptions.Exit(1)
    click.echo("the two hold the same tree")


@image.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def image_list(as_json: bool) -> None:
    """List the images, newest first; your images have names.

    \b
    Examples:
      bench image list
      bench image list --json
    """
    if as_json:
        listed = [ListedImage(**dict(image)) for image in images()]
        ImagesOutput(images=listed).tell()
        return
    for image in images():
        columns = [image.digest[:12], image.variant, image.created_at, str(image.directory), image.name or ""]
        click.echo("  ".join(columns).rstrip())


@image.command("prune")
def image_prune() -> None:
    """Remove all images but the newest of each variant and name. Refused while a bench is running.

    \b
    Examples:
      bench image prune
    """
    if not _removed(prune):
        click.echo("there is no older image")


@image.command("remove")
@click.argument("name")
def image_remove(name: str) -> None:
    """Remove an image by its name or the beginning of its digest. Refused while a bench is running.

    \b
    Examples:
      bench image remove mine
      bench image remove 1f0c5a2b77d1
    """
    _removed(lambda: remove([find(name)]))


def _removed(work: Callable[[], list[Image]]) -> list[Image]:
    """Remove images and list them. Raises RequestError while a bench is running."""
    if ledger.living():
        raise RequestError("a bench is running and may be using an image", remedy="wait until it has ended")
    with artefacts.making("the image", partial(click.echo, err=True)):
        removed = work()
    for image in removed:
        click.echo(f"removed: {image.digest[:12]}  {image.name or image.variant}  {image.created_at}")
    return removed
