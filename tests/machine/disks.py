"""The disks of the machine, each made once per directory: Debian with the suite's libraries, and the built image."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from provisioning.images.image import Image

REPOSITORY = Path(__file__).parents[2]
PACKAGES = """
systemd systemd-sysv dbus dbus-user-session libpam-systemd udev openssh-server python3-venv podman docker.io runc crun
bubblewrap cgroup-tools uidmap slirp4netns rootlesskit fuse-overlayfs cpio e2fsprogs iproute2 iptables procps cron fio
apparmor qemu-system-x86 mmdebstrap munge slurmctld slurmd slurm-client linux-image-cloud-amd64 ca-certificates
"""
FURTHER = {"bookworm": ("charliecloud-runtime",), "trixie": ("docker-cli", "charliecloud-runtime")}
"""The packages of a suite alone; its keys are the suites."""
ENVIRONMENT, IMAGES, USER = "opt/environment", "var/lib/virtbench/images", "ada"
BENCH = f"{ENVIRONMENT}/bin/bench"
SLOW = "x-systemd.device-timeout=1h"
"""systemd waits 90 s for a disk by default; where other work keeps the host busy, it shows up later."""
FILES = {
    "etc/fstab": "/dev/vda / ext4 defaults 0 1\n"
    f"/dev/vdb /{IMAGES}/{{name}} ext4 {SLOW} 0 2\n"
    f"/dev/vdc /var/lib/docker ext4 nofail,{SLOW} 0 0\n",
    "etc/hostname": "machine\n",
    "etc/hosts": "127.0.0.1 localhost machine\n",
    "etc/systemd/network/all.network": "[Match]\nName=eth0\n[Network]\nDHCP=ipv4\n",
    # In numpy's argsort by AVX2, which real CPUs run, QEMU 7.2's emulated one ends by a general protection fault.
    BENCH: f'#!/bin/sh\nNPY_DISABLE_CPU_FEATURES=X86_V3 exec /{ENVIRONMENT}/bin/python /opt/virtbench/cli.py "$@"\n',
    "etc/slurm/slurm.conf": """\
ClusterName=machine
SlurmctldHost=machine
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/state
SlurmdSpoolDir=/var/lib/slurm/spool
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
NodeName=machine CPUs=2 RealMemory=4500 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""",
    "etc/slurm/cgroup.conf": "CgroupPlugin=cgroup/v2\nConstrainCores=yes\nConstrainRAMSpace=yes\n",
}
SERVICES = ("systemd-networkd", "ssh", "docker", "munge")


def run(*argv: str) -> str:
    """Run a program of this host; returns its output, and raises CalledProcessError with it."""
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def once(disk: Path, make: Callable[[Path], None], note: Callable[[str], None]) -> Path:
    """Return the file, made by ``make`` under another name if it is missing."""
    if not disk.exists():
        note(f"making {disk.name}")
        unfinished = disk.with_suffix(".part")
        make(unfinished)
        unfinished.rename(disk)
    return disk


def of_image(image: Image, target: Path) -> None:
    run("mke2fs", "-q", "-F", "-t", "ext4", "-d", str(image.directory), str(target), "16G")


def of_system(suite: str, image: Image, target: Path) -> None:
    """Make the system's disk; next to it its kernel, its initrd and the keys of its SSH."""
    tree, stem = target.with_suffix(".tree"), target.with_suffix("")
    shutil.rmtree(tree, ignore_errors=True)
    packages = ",".join((*PACKAGES.split(), *FURTHER[suite]))
    run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", suite, str(tree))
    inside = ("chroot", str(tree))
    run(*inside, "useradd", "--create-home", "--shell", "/bin/bash", USER)
    run(*inside, "systemctl", "--quiet", "enable", *SERVICES, "serial-getty@ttyS0")
    run(*inside, "systemctl", "--quiet", "disable", "slurmctld", "slurmd")
    for name, text in FILES.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{name}", image.directory.name))
    (tree / BENCH).chmod(0o755)
    (tree / "usr/local/bin/bench").symlink_to(f"/{BENCH}")
    (tree / IMAGES / image.directory.name).mkdir(parents=True)
    _libraries(tree, inside)
    _keys(tree, stem)
    for name in ("vmlinuz", "initrd.img"):
        shutil.copy(max(tree.glob(f"boot/{name}-*")), f"{stem}.{name}")
    run("mke2fs", "-q", "-F", "-t", "ext4", "-d", str(tree), str(target), "12G")
    shutil.rmtree(tree)


def _libraries(tree: Path, inside: tuple[str, ...]) -> None:
    """Give the system's own Python the suite's libraries: those of this environment if their versions agree.

    Otherwise they are fetched, but for torch, whose usual build takes gigabytes: only jobs outside the image need it.
    """
    run(*inside, "python3", "-m", "venv", "--without-pip", f"/{ENVIRONMENT}")
    version = run(*inside, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    site = tree / ENVIRONMENT / f"lib/python{version}/site-packages"
    if version == "{}.{}".format(*sys.version_info[:2]):
        ours = next(path for path in sys.path if path.endswith("site-packages"))
        shutil.copytree(ours, site, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*virtbench*"))
        return
    wanted = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    words = ("--quiet", "--target", str(site), "--only-binary=:all:", "--python-version", version)
    constraints = ("-c", str(REPOSITORY / "constraints.txt"))
    run(sys.executable, "-m", "pip", "install", *words, *constraints, *(one for one in wanted if "torch" not in one))


def _keys(tree: Path, stem: Path) -> None:
    key = Path(f"{stem}.key")
    for path in (key, Path(f"{key}.pub")):
        path.unlink(missing_ok=True)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    for home in (tree / "root", tree / "home" / USER):
        (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(f"{key}.pub", home / ".ssh/authorized_keys")
        owner = home.stat()
        for path in (home / ".ssh", home / ".ssh/authorized_keys"):
            os.chown(path, owner.st_uid, owner.st_gid)
    public = (tree / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
    Path(f"{stem}.known").write_text(f"machine {public}")
