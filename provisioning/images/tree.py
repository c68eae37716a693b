"""The programs that build images, and the tree of a root filesystem that comes of one."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from provisioning import ledger
from provisioning.nodes import LocalNode
from provisioning.processes import check_answer
from suite.errors import BenchError, CommandError, RequestError

MADE = ("var/log", "var/lib/containers", "var/lib/docker", "etc/docker", "mnt/data")
"""The directories that a target mounts something over, besides those that every Linux has."""
LABEL = "virtbench"
"""Marks what a builder keeps of the suite's recipes, layers without a name too."""
EMPTIED = ("dev", "proc", "sys", "run", "tmp")


@dataclass(frozen=True)
class Builder:
    """A program that builds an image from a recipe. It is named as the engine that removes its containers."""

    program: str
    probe: str
    """The subcommand that succeeds if the program works."""
    local_prefix: str
    """The prefix of the names of images that it has made itself."""
    options: tuple[str, ...] = ()
    mounts: bool = False
    """Whether ``build`` can mount directories of this host for the steps."""

    def works(self, node: LocalNode) -> bool:
        with suppress(BenchError):  # not installed, or another program, whose images have other names
            answer = node.run([self.program, "--version"], check=False)
            check_answer(self.program, answer.stdout, node.name)
            probed = node.run([self.program, self.probe], check=False)
            return not probed.returncode
        return False

    def build(
        self,
        node: LocalNode,
        recipe: Path,
        context: Path,
        tag: str,
        *,
        fresh: bool,
        more: Sequence[str] = (),
        **arguments: str,
    ) -> None:
        """Run a Dockerfile, every step of it if it is to be ``fresh``; ``more`` are options of the program.

        Raises CommandError, with the output of the step, when a step fails.
        """
        argv = [self.program, "build", *self.options, "--network", "host", "--label", LABEL, *more]
        argv += ["--no-cache"] if fresh else []
        argv += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        argv += ["--tag", tag, "--file", str(recipe), "--", str(context)]
        done = node.run(argv, timeout_s=7200.0, check=False)
        if done.returncode:
            step = max(0, done.stdout.rfind("STEP "))
            raise CommandError(argv, done.returncode, f"{done.stdout[step:]}{done.stderr}")

    def inspect(self, node: LocalNode, image: str, template: str) -> str:
        """Return what a template prints of an image. Raises CommandError for one that is not in its store."""
        answer = node.run([self.program, "image", "inspect", "--format", template, "--", image])
        return answer.stdout.strip()


BUILDERS = (
    # Unpacking packages needs no isolation.
    Builder("podman", "info", "localhost/", ("--isolation", "chroot"), mounts=True),
    Builder("docker", "version", ""),
)


def working_builder(node: LocalNode) -> Builder:
    """Return the first builder that works. Raises RequestError if none does."""
    for builder in BUILDERS:
        if builder.works(node):
            return builder
    raise RequestError("neither podman nor docker works here", remedy="install podman: apt-get install podman")


def unpack(node: LocalNode, builder: Builder, image: str, tree: Path) -> None:
    """Unpack the root filesystem of an image, which the builder puts together from its layers."""
    name = ledger.fresh("virtbench")
    archive = tree.with_name("export.tar")
    with ledger.holding("container", f"{builder.program}:{name}"):
        node.run([builder.program, "create", "--name", name, image, "true"], timeout_s=600.0)
        node.run([builder.program, "export", "--output", str(archive), name], timeout_s=1800.0)
    owner = [] if os.geteuid() == 0 else ["--no-same-owner"]
    # Devices are the target's own business, and only root could unpack them.
    argv = ["tar", "--extract", "--exclude=./dev/*", "--exclude=dev/*", *owner]
    node.run([*argv, "--file", str(archive), "--directory", str(tree)], timeout_s=1800.0)
    archive.unlink()


def settle(tree: Path) -> None:
    """Empty the mount points that an engine leaves in an export: every form of the image has the same places."""
    for name in EMPTIED:
        shutil.rmtree(tree / name, ignore_errors=True)
        (tree / name).mkdir(mode=0o755)
    (tree / "tmp").chmod(0o1777)
    for name in ("hostname", "hosts", "resolv.conf"):
        path = tree / "etc" / name
        path.unlink(missing_ok=True)
        path.write_text("127.0.0.1 localhost\n" if name == "hosts" else "")
    (tree / ".dockerenv").unlink(missing_ok=True)
    for name in MADE:
        (tree / name).mkdir(mode=0o755, parents=True, exist_ok=True)
