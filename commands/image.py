"""``bench image``: the userland that every target runs."""

import json

import click

from provisioning import ledger
from provisioning.images.build import build
from provisioning.images.image import broken, find, images, prune
from suite.errors import RequestError


@click.group()
def image() -> None:
    """Build and keep the userland that every target runs: built once, packed for all.

    \b
    Examples:
      bench image build
      bench image list
    """


@image.command("build")
@click.option("--cuda", is_flag=True, help="Build for NVIDIA GPUs, from docker/Dockerfile.cuda.")
@click.option("--rebuild", is_flag=True, help="Rebuild even if nothing has changed.")
def image_build(cuda: bool, rebuild: bool) -> None:
    """Build the image from docker/Dockerfile, with podman or docker, from a registry or a Debian mirror.

    \b
    Examples:
      bench image build
      bench image build --cuda --rebuild
    """
    built = build("cuda" if cuda else "cpu", lambda text: click.echo(text, err=True), rebuild=rebuild)
    click.echo(built.digest)


@image.command("verify")
@click.argument("digest", required=False)
def image_verify(digest: str | None) -> None:
    """Hash the image again, every file of it, and say what differs. Default: the newest.

    \b
    Examples:
      bench image verify
      bench image verify 1f0c5a2b77d1
    """
    found = find(digest)
    differences = found.verify()
    for line in differences[:50]:
        click.echo(line)
    if differences:
        raise broken(found, f"{len(differences)} differences")
    click.echo(f"{found.digest} is whole")


@image.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def image_list(as_json: bool) -> None:
    """List the images that were built, newest first.

    \b
    Examples:
      bench image list
      bench image list --json
    """
    if as_json:
        click.echo(json.dumps([{**each.model_dump(), "tree": str(each.tree)} for each in images()], indent=1))
        return
    for each in images():
        click.echo(f"{each.digest[:12]}  {each.variant}  {each.created_at}  {each.directory}")


@image.command("prune")
def image_prune() -> None:
    """Remove all images but the newest of each variant. Refused while a bench is running.

    \b
    Examples:
      bench image prune
    """
    if ledger.living():
        raise RequestError("a bench is running and may be using an image", remedy="wait until it has ended")
    removed = prune()
    for each in removed:
        click.echo(f"removed: {each.digest[:12]}  {each.variant}  {each.created_at}")
    if not removed:
        click.echo("there is no older image")
