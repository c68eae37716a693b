"""Docker, through its command line and the daemon that it reaches; in a guest the daemon is started.

A guest gets a disk with the image in docker's own store, made once, natively, by the tree's own daemon: loading a
gigabyte inside an emulated guest would take minutes at every start.
"""

import json
import os
import re
import tarfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from provisioning import artefacts
from provisioning.engines.base import ContainerSpec, GuestStore, digest_of, image_reference
from provisioning.engines.command_line import CommandLineEngine
from provisioning.images.image import Image, find, stamp
from provisioning.images.pack import disk
from provisioning.nodes import LocalNode, is_guest, local_node
from suite.errors import CommandError, MeasurementError, RequestError, option
from suite.interfaces import Node, Note

PROGRAM = ("docker",)
STORE = "docker.img"
STORE_READY_S = 60.0
DAEMON_READY_S = 180.0
LOADED_WITHIN_S = 1800.0
OWN_CONTAINERD = "/run/docker/containerd"
"""The directory of the socket of the containerd that dockerd starts itself, whose files are below dockerd's."""
CONTAINERD_ROOT = "/var/lib/containerd"
DAEMON = (
    # Makes containers and nothing else: no bridge, no firewall rules.
    *("dockerd", "--data-root", "/var/lib/docker", "--exec-root", "/run/docker", "--pidfile", "/run/docker.pid"),
    *("--storage-driver", "overlay2", "--bridge", "none", "--iptables=false", "--ip6tables=false"),
    *("--ip-forward=false", "--log-level", "warn"),
)


def docker_store(image: Image, note: Note) -> Path:
    """Return the disk, made if it is missing. Raises RequestError without root."""
    target = image.file(STORE)
    if STORE in image.files and target.is_file():
        return target
    if os.geteuid() != 0:
        remedy = f"run it once as root, or use {option('engine')} podman or runc for container-vm"
        raise RequestError("docker in a VM needs a disk with its store, which only root can make", remedy=remedy)
    with ExitStack() as stack:
        stack.enter_context(artefacts.making(f"the docker store of image {image.digest[:12]}", note))
        image.files |= find(image.digest).files  # another bench may have made it meanwhile
        if STORE in image.files and target.is_file():
            return target
        note("making the disk with the store of the guest's docker (once per image)")
        node = stack.enter_context(local_node((), str(image.tree)))
        workshop = artefacts.workshop(node, str(image.directory))
        building = Path(stack.enter_context(workshop))
        store = building / "store"
        sockets = building / "run"
        store.mkdir()
        sockets.mkdir()
        _load(node, image, store, sockets)
        disk(node, store, building / STORE)
        artefacts.put(node, str(building / STORE), str(target))
        image.files[STORE] = stamp(target)
        image.save()
    return target


def _load(node: LocalNode, image: Image, store: Path, sockets: Path) -> None:
    """Start the tree's docker on the store, load the archive and end it; its mounts end with its namespaces."""
    inside = [
        *("bwrap", "--ro-bind", str(image.tree), "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp", "--tmpfs", "/etc/docker", "--bind", str(sockets), "/run"),  # noqa: S108 (inside)
        *("--ro-bind", str(image.directory), "/mnt", "--chdir", "/"),
    ]
    private = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    state = ["--cap-add", "ALL", "--bind", "/sys", "/sys", "--bind", str(store), "/var/lib/docker", "--"]
    # This daemon, whatever DOCKER_HOST may say of another one.
    client = [*inside, "--", *PROGRAM, "--host", "unix:///run/docker.sock"]
    daemon = node.start([*private, *inside, *state, *DAEMON])
    deadline = time.monotonic() + STORE_READY_S
    while node.run([*client, "version"], check=False).returncode:
        if not daemon.running() or time.monotonic() > deadline:
            message = "the tree's own docker daemon did not start"
            raise MeasurementError(message, kind="image", output_tail=daemon.output_tail())
        time.sleep(0.2)
    node.run([*client, "load", "--quiet", "--input", "/mnt/oci.tar"], timeout_s=1800.0)
    node.run([*client, "image", "inspect", "--format", "{{.ID}}", image_reference(image.digest)])
    daemon.kill()


class Docker(CommandLineEngine):
    name = "docker"
    program = PROGRAM
    version_field = "{{.Server.Version}} {{range .Server.Components}}{{.Name}},{{end}}"
    layers_field = "{{.DockerRootDir}}"
    remedy = "start the daemon (systemctl start docker), or choose --engine podman or runc"
    denied = "add the user to the group docker and sign in again, or use root"
    machine_field = "{{.Name}} {{.KernelVersion}} {{.MemTotal}}"
    guest_store = GuestStore(STORE, docker_store)
    # A daemon with userns-remap would give the directories of this user to a root that may not write there.
    own_settings = ("--userns=host",)

    def root_options(self, spec: ContainerSpec) -> Sequence[str]:
        return [image_reference(spec.image)]

    def version(self, node: Node) -> str:
        if is_guest(node):
            self._start_daemon(node)
        return super().version(node)

    def service_version(self, answer: str, node: Node) -> str:
        """Return the version of the daemon; its first component tells Docker's from podman's, which speaks its API."""
        version, _, components = answer.partition(" ")
        service = components.partition(",")[0]
        if service not in ("", "Engine"):
            raise RequestError(
                f"the service behind docker on {node.name} is {service}",
                remedy=f"unset DOCKER_HOST, or use {option('engine')} podman",
            )
        return version

    def check_machine(self, node: Node) -> None:
        super().check_machine(node)
        if self._info(node, "{{.MemoryLimit}}").strip() == "false":
            raise RequestError(
                f"the docker of {node.name} cannot limit memory: its daemon may not make control groups",
                remedy="a rootless daemon needs systemd and control groups of version 2; or use root's daemon, or "
                f"{option('engine')} podman",
            )

    def pins_by_affinity(self, node: Node) -> bool:
        """Return whether it is rootless without the controller ``cpuset``, which systemd does not delegate."""
        return self._info(node, "{{.CPUSet}}").strip() == "false"

    def layers_at(self, node: Node) -> str:
        """Return where layers are: by default of Docker 29, and where chosen before, in the store of containerd."""
        root = super().layers_at(node)
        driver = self._info(node, "{{json .DriverStatus}}")
        if "io.containerd.snapshotter" not in driver:
            return root
        if OWN_CONTAINERD in self._info(node, "{{json .Containerd}}"):
            return f"{root}/containerd/daemon"
        dumped = node.run(["containerd", "config", "dump"], check=False).stdout
        named = re.search(r"""^root = ['"](.+)['"]$""", dumped, re.MULTILINE)
        if named:
            return named[1]
        return CONTAINERD_ROOT

    def seccomp_sha256(self, node: Node, tree: str) -> str | None:  # noqa: ARG002 (docker has a profile of its own)
        if is_guest(node):
            return None
        named = re.search(r'profile=(/[^",]+)', self._info(node, "{{json .SecurityOptions}}"))
        if not named:
            return None
        return digest_of(node, named[1])

    def _info(self, node: Node, field: str) -> str:
        """Return a field of what the daemon reports of itself; empty where it has none such."""
        answer = node.run([*self.program, "info", "--format", field], check=False)
        return answer.stdout

    def runtime_version(self, node: Node) -> str:
        runtimes = node.run([*self.program, "info", "--format", "{{json .Runtimes}}"]).stdout
        declared = json.loads(runtimes)[self.runtime]
        # containerd finds some by their type and not by a path.
        if "path" in declared:
            return node.run([declared["path"], "--version"]).stdout
        return str(self.runtime)

    def load(self, host: Node, digest: str, archive: Path) -> None:
        """Load the archive into docker's own store if it is not there; then compare what the store holds."""
        wanted = layers(archive)
        reference = image_reference(digest)
        if self._held(host, reference) == wanted:
            return
        argv = [*self.program, "load", "--quiet"]
        with archive.open("rb") as content:
            loading = host.start(argv, stdin=content)
        status = loading.wait(LOADED_WITHIN_S)
        if status:
            raise CommandError(argv, status, f"{host.name}: {loading.output_tail()}")
        if self._held(host, reference) != wanted:
            raise self._missing(host, reference)

    def check(self, node: Node, digest: str) -> None:
        reference = image_reference(digest)
        if not self._held(node, reference):
            raise self._missing(node, reference)

    def check_network(self, network: str, *, in_lab: bool) -> None:
        # Its containers are children of a daemon that lives in another network.
        if network == "host" and in_lab:
            raise RequestError(
                f"{option('network')} host: docker cannot start a container in the network of a lab node",
                remedy=f"use {option('engine')} podman or runc, or {option('network')} overlay",
            )

    def _held(self, node: Node, reference: str) -> list[str]:
        """Return the digests of the layers of the image of this name in the store; none if there is no such image."""
        words = ["image", "inspect", "--format", "{{json .RootFS.Layers}}", reference]
        answer = node.run([*self.program, *words], check=False)
        if answer.returncode == 0:
            return list(json.loads(answer.stdout))
        return []

    def _missing(self, node: Node, reference: str) -> MeasurementError:
        message = f"the {self.name} of {node.name} does not hold {reference}"
        return MeasurementError(message, kind="image", remedy="run the command again: it loads the image first")

    def _start_daemon(self, node: Node) -> None:
        """Start the daemon in a guest of the suite's, where nobody else would."""
        answer = node.run([*self.program, "info", "--format", "{{.ID}}"], check=False, timeout_s=60.0)
        if answer.returncode == 0:
            return
        with node.opening.running("daemon"):
            daemon = node.start(DAEMON)
            waiting = ["busybox", "timeout", str(int(DAEMON_READY_S)), "/opt/virtbench/guest/wait-for-docker"]
            waited = node.run(waiting, check=False, timeout_s=DAEMON_READY_S + 10)
        if waited.returncode:
            daemon.kill()
            message = f"dockerd was not ready within {DAEMON_READY_S:.0f} s on {node.name}"
            raise MeasurementError(message, kind="engine", command=DAEMON, output_tail=daemon.output_tail())


DOCKER = Docker()


def layers(archive: Path) -> list[str]:
    """Return the digests of the image's unpacked layers: docker checks them while loading, and names them after that.

    Raises RequestError for an archive that cannot be read.
    """

    def content(name: str) -> bytes:
        file = tar.extractfile(name)
        if file:
            return file.read()
        return b""

    try:
        with tarfile.open(archive) as tar:
            (manifest,) = json.loads(content("manifest.json"))
            config = content(manifest["Config"])
            diff_ids: list[str] = json.loads(config)["rootfs"]["diff_ids"]
    except (OSError, tarfile.TarError, ValueError, LookupError) as error:
        raise RequestError(f"{archive} is no image: {error}", remedy="build it again: bench image build") from error
    return diff_ids
