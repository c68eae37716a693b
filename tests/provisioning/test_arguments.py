"""The builders of command lines: pure, so that what would be run is tested without running it."""

import itertools
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioning.cgroup import limits as cgroups
from provisioning.cgroup.limits import BlockDevice
from provisioning.engines.base import SLEEPER, TMPFS, ContainerSpec, get_engine, image_reference
from provisioning.engines.docker import DOCKER, Docker
from provisioning.engines.podman import PODMAN
from provisioning.engines.runc import RUNC, bundle_config
from provisioning.gpus import DeviceNode, Edits
from provisioning.lab.tap import Tap
from provisioning.layers.container import ContainerLayer
from provisioning.layers.userland import NO_PRIVILEGES, chroot_argv, taskset
from provisioning.machines import virtiofs
from provisioning.machines.accelerator import PROGRAM
from provisioning.machines.qemu_command import Disk, QemuSpec, qemu_argv
from provisioning.machines.ssh import SshAccess, free_port
from suite.errors import CommandError, MeasurementError
from suite.interfaces import Completed
from suite.job.envelope import GIB, Envelope, most_processes, tmpfs_bytes
from suite.job.properties import Properties
from tests.extensions.conftest import REPOSITORY
from tests.provisioning.conftest import FakeNode

VM = QemuSpec(
    name="vm-1",
    accelerator="tcg",
    cpus=(2, 3, 5),
    memory_bytes=2 * GIB,
    kernel="/i/vmlinuz",
    initrd="/r/initrd",
    directory="/r/vm-1",
    disks=(Disk("/i/disk.img"),),
    ssh_port=2222,
)
CONTAINER = ContainerSpec(
    name="virtbench-1",
    image="0123456789abcdef",
    tree="/i/tree",
    cpus="0-1",
    memory_bytes=2 * GIB,
    limits=(("nofile", 20000), ("nproc", 1000)),
)
DISK = BlockDevice("/dev/sda", "8:0")
LIMITED = Properties(disk_limit_bytes_per_s=32 << 20, disk_limit_iops=9)
RUN_ARGV = {"docker": DOCKER.run_argv, "podman": PODMAN.run_argv}


def values(argv: list[str], option: str) -> list[str]:
    """What follows each occurrence of an option."""
    return [value for word, value in itertools.pairwise(argv) if word == option]


# ---- QEMU


def test_qemu_is_pinned_to_the_cpus_of_the_envelope_and_has_one_virtual_cpu_for_each() -> None:
    argv = qemu_argv(VM)
    assert argv[:4] == ["taskset", "--cpu-list", "2-3,5", PROGRAM]
    assert values(argv, "-smp") == ["3,sockets=1,cores=3,threads=1"]


def test_qemu_gives_exactly_the_memory_of_the_envelope() -> None:
    assert values(qemu_argv(VM), "-m") == ["2048M"]


@pytest.mark.parametrize(("accelerator", "words"), [("kvm", ("kvm", "host")), ("tcg", ("tcg,thread=multi", "max"))])
def test_the_accelerator_decides_the_cpu_model(accelerator: str, words: tuple[str, str]) -> None:
    argv = qemu_argv(replace(VM, accelerator=accelerator))  # type: ignore[arg-type]
    assert (values(argv, "-accel"), values(argv, "-cpu")) == ([words[0]], [words[1]])


def test_qemu_is_confined_by_its_sandbox_and_reads_no_configuration_of_the_host() -> None:
    argv = qemu_argv(VM)
    (sandbox,) = values(argv, "-sandbox")
    assert sandbox.split(",")[0] == "on"
    assert {"elevateprivileges=deny", "spawn=deny"} < set(sandbox.split(","))
    assert {"-nodefaults", "-no-user-config"} < set(argv)


def test_the_guest_is_reached_through_the_loopback_alone_and_reaches_nobody() -> None:
    assert values(qemu_argv(VM), "-netdev") == ["user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:2222-:22"]


@pytest.mark.parametrize(
    ("disk", "options"),
    [
        (Disk("/d"), {"cache=none", "aio=native", "readonly=on"}),
        (Disk("/d", readonly=False), {"cache=none", "aio=native", "readonly=off"}),
        (Disk("/d", direct=False), {"cache=writeback", "aio=threads", "readonly=on"}),
        (Disk("/d", direct=False, discard_writes=True), {"cache=writeback", "aio=threads", "snapshot=on"}),
        (
            Disk("/d", limits=LIMITED.disk_limits),
            {"cache=none", "aio=native", "readonly=on", "throttling.group=disks"}
            | {
                f"throttling.{limit}" for way in ("read", "write") for limit in (f"bps-{way}=33554432", f"iops-{way}=9")
            },
        ),
    ],
)
def test_a_disk_is_raw_and_direct_where_the_host_can(disk: Disk, options: set[str]) -> None:
    (drive,) = values(qemu_argv(replace(VM, disks=(disk,))), "-drive")
    assert set(drive.split(",")) == {"file=/d", "if=none", "id=disk0", "format=raw"} | options


@pytest.mark.parametrize(("accelerator", "thread"), [("kvm", ",iothread=disks"), ("tcg", "")])
def test_a_microvm_has_the_devices_of_the_usual_machine_over_mmio(accelerator: str, thread: str) -> None:
    plugged = Tap("tap0", "06:00:00:00:00:01", "10.0.0.1", "10.0.0.1/24")
    usual = replace(VM, accelerator=accelerator, tap=plugged)  # type: ignore[arg-type]
    argv = qemu_argv(replace(usual, microvm=True))
    assert values(qemu_argv(usual), "-machine") == ["q35"]
    assert values(argv, "-machine") == ["microvm"]
    assert values(argv, "-device") == [
        "virtio-rng-device",
        f"virtio-blk-device,drive=disk0{thread}",
        "virtio-net-device,netdev=net",
        "virtio-net-device,netdev=lab,mac=06:00:00:00:00:01",
    ]
    assert "pci" not in " ".join(argv).lower()
    assert "tsc" not in " ".join(argv)
    (words,) = values(qemu_argv(replace(usual, microvm=True, tsc_khz=2596140)), "-append")
    assert words.endswith(" tsc=reliable tsc_early_khz=2596140"), "emulated, it has no clock to find the rate by"
    assert values(argv, "-drive") == values(qemu_argv(usual), "-drive")


def test_every_disk_is_a_device_of_its_own_in_the_order_given() -> None:
    argv = qemu_argv(replace(VM, disks=(Disk("/a"), Disk("/b"))))
    assert [drive.split(",")[0] for drive in values(argv, "-drive")] == ["file=/a", "file=/b"]
    devices = [word for word in values(argv, "-device") if word.startswith("virtio-blk")]
    assert devices == [f"virtio-blk-pci,drive=disk{number},iothread=disks" for number in (0, 1)]


def test_a_comma_in_a_path_begins_no_option() -> None:
    argv = qemu_argv(replace(VM, disks=(Disk("/a,readonly=off"),), directory="/r,x"))
    assert values(argv, "-drive")[0].startswith("file=/a,,readonly=off,if=none,")
    assert values(argv, "-qmp") == ["unix:/r,,x/qmp,server=on,wait=off"]


def test_what_a_shell_would_take_apart_stays_one_word() -> None:
    odd = "/a b/$(touch x)/`y`;z'\""
    argv = qemu_argv(replace(VM, kernel=odd, initrd=odd, disks=(Disk(odd),)))
    assert values(argv, "-kernel") == [odd]
    assert values(argv, "-initrd") == [odd]
    assert values(argv, "-drive")[0].startswith(f"file={odd},if=none")


def test_the_console_is_qemus_own_output() -> None:
    argv = qemu_argv(VM)
    assert values(argv, "-append")[0].split()[0] == "console=ttyS0"
    assert values(argv, "-chardev") == ["stdio,id=console,signal=off"]
    assert values(argv, "-serial") == ["chardev:console"]


def test_an_unpinned_machine_has_as_many_cpus_and_stays_on_none() -> None:
    argv = qemu_argv(replace(VM, pinned=False))
    assert argv[0] == PROGRAM
    assert values(argv, "-smp") == values(qemu_argv(VM), "-smp")


# ---- docker and podman


# Docker's command line has no option for it: there the file system's own mount must have them.
NEITHER_PROGRAMS_NOR_DEVICES = {"podman": ",nosuid,nodev"}


@pytest.mark.parametrize("engine", RUN_ARGV)
def test_a_container_sees_the_data_volume_read_only_unless_it_may_write(engine: str) -> None:
    more = NEITHER_PROGRAMS_NOR_DEVICES.get(engine, "")
    for writable, end in ((False, f",readonly,bind-nonrecursive{more}"), (True, more)):
        spec = replace(CONTAINER, data=("/d,with a comma", "/mnt/data", writable))
        assert f'type=bind,"source=/d,with a comma",target=/mnt/data{end}' in values(RUN_ARGV[engine](spec), "--mount")


@pytest.mark.parametrize("engine", RUN_ARGV)
def test_each_switch_changes_its_own_property_and_nothing_else(engine: str) -> None:
    plain = RUN_ARGV[engine](CONTAINER)
    opts = "--security-opt"
    assert values(RUN_ARGV[engine](replace(CONTAINER, seccomp=False)), opts) == [
        *values(plain, opts), "seccomp=unconfined"
    ]  # fmt: skip
    assert values(RUN_ARGV[engine](replace(CONTAINER, network="ns:/n")), "--network") == ["ns:/n"]
    bound = values(RUN_ARGV[engine](replace(CONTAINER, bound_tree=True)), "--mount")
    only = f"readonly,bind-nonrecursive{NEITHER_PROGRAMS_NOR_DEVICES.get(engine, '')}"
    assert bound == [f'type=bind,"source=/i/tree{place}",target={place},{only}' for place in ("/usr", "/opt")]
    by_count = RUN_ARGV[engine](replace(CONTAINER, by_count=True))
    assert (values(by_count, "--cpus"), values(by_count, "--cpuset-cpus")) == (["2"], [])
    held_back = RUN_ARGV[engine](replace(CONTAINER, cpu_share=0.9))
    assert (values(held_back, "--cpus"), values(held_back, "--cpuset-cpus")) == (
        ["1.8"],
        values(plain, "--cpuset-cpus"),
    )
    assert (values(plain, "--cpus"), values(plain, "--mount"), values(plain, "--network")) == ([], [], ["none"])
    unlimited = RUN_ARGV[engine](replace(CONTAINER, memory_limited=False))
    assert [word for word in plain if word not in unlimited] == [
        "--memory",
        str(2 * GIB),
        "--memory-swap",
        str(2 * GIB),
    ]
    throttled = RUN_ARGV[engine](replace(CONTAINER, limited_disks=(DISK,), disk_limits=LIMITED.disk_limits))
    added = [word for word in throttled if word not in plain]
    assert added == [
        f"--device-{way}-{unit}=/dev/sda:{limit}"
        for unit, limit in (("bps", 32 << 20), ("iops", 9))
        for way in ("read", "write")
    ]


@pytest.mark.parametrize("engine", RUN_ARGV)
def test_a_container_gets_the_envelope_and_no_swap(engine: str) -> None:
    argv = RUN_ARGV[engine](CONTAINER)
    assert argv[:3] == [engine, "run", "--detach"]
    assert values(argv, "--cpuset-cpus") == ["0-1"]
    assert values(argv, "--memory") == values(argv, "--memory-swap") == [str(2 * GIB)]
    assert values(argv, "--ulimit") == ["nofile=20000:20000", "nproc=1000:1000"]


@pytest.mark.parametrize("engine", RUN_ARGV)
def test_a_container_has_no_privilege_that_training_does_not_need(engine: str) -> None:
    argv = RUN_ARGV[engine](CONTAINER)
    assert "--read-only" in argv
    assert values(argv, "--cap-drop") == ["ALL"]
    assert values(argv, "--security-opt") == ["no-new-privileges"], "and so the engine's own seccomp profile stays"
    assert values(argv, "--network") == ["none"]
    assert not {"--privileged", "--cap-add", "--pid", "--ipc", "--volume", "--mount"} & set(argv)


@pytest.mark.parametrize("engine", RUN_ARGV)
def test_a_container_is_named_fetches_nothing_and_runs_the_sleeper(engine: str) -> None:
    argv = RUN_ARGV[engine](CONTAINER)
    assert values(argv, "--name") == values(argv, "--hostname") == ["virtbench-1"]
    assert values(argv, "--pull") == ["never"]
    assert tuple(argv[-len(SLEEPER) :]) == SLEEPER


EDITS = Edits(
    (DeviceNode("/dev/nvidia0", 195, 0), DeviceNode("/dev/nvidia-caps/nvidia-cap1", 234, 1)),
    (("/i/driver/580.1", "/run/nvidia"),),
    {"CUDA_VISIBLE_DEVICES": "GPU-1"},
)


def test_an_engine_that_inherits_from_dockers_uses_its_own_program() -> None:
    class Nerdctl(Docker):
        name, program = "nerdctl", ("nerdctl",)

    node = FakeNode({("nerdctl",): Completed(1, "", "no such image")})
    with pytest.raises(MeasurementError, match="the nerdctl of"):
        Nerdctl().check(node, "a" * 64)
    assert {argv[0] for argv in node.ran} == {"nerdctl"}


def test_docker_runs_the_image_of_its_store_and_podman_the_tree_under_an_overlay() -> None:
    assert DOCKER.run_argv(CONTAINER)[-2] == image_reference(CONTAINER.image) == "virtbench:0123456789ab"
    assert PODMAN.run_argv(CONTAINER)[-3:-1] == ["--rootfs", "/i/tree:O"]


@pytest.mark.parametrize("engine", RUN_ARGV)
def test_engines_are_given_the_devices_of_gpus_and_the_drivers_libraries(engine: str) -> None:
    spec = replace(CONTAINER, edits=EDITS)
    argv = RUN_ARGV[engine](spec)
    assert values(argv, "--device") == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1"]
    (mount,) = values(argv, "--mount")
    assert mount.startswith('type=bind,"source=/i/driver/580.1",target=/run/nvidia,readonly')
    assert "--device" not in RUN_ARGV[engine](CONTAINER)


@pytest.mark.parametrize("name", ["docker", "podman", "runc"])
def test_a_command_reaches_the_container_by_its_name(name: str) -> None:
    argv = get_engine(name).exec_argv(CONTAINER)
    assert get_engine(name).name == name
    assert argv[0] == name
    assert "exec" in argv
    assert argv[-1] == "virtbench-1"


@pytest.mark.parametrize(
    ("told", "pins"),
    [
        ("true [cpu memory pids]", True),  # what systemd 252 and 257 delegate to a user
        ("true [cpuset cpu io memory pids]", False),
        ("false [cpuset cpu io memory hugetlb pids rdma misc]", False),
        ("false []", False),
    ],
)
def test_rootless_podman_pins_by_affinity_where_no_cpus_are_delegated_to_the_user(told: str, pins: bool) -> None:
    node = FakeNode({("podman", "info"): Completed(0, f"{told}\n", "")})
    assert PODMAN.pins_by_affinity(node) is pins
    spec = replace(CONTAINER, by_affinity=pins)
    assert values(PODMAN.run_argv(spec), "--cpuset-cpus") == ([] if pins else ["0-1"])
    assert (PODMAN.exec_argv(spec)[-3:] == ["taskset", "--cpu-list", "0-1"]) is pins
    layer = ContainerLayer(PODMAN, "0" * 64, GIB)
    here = layer.specification(node, "/tree")
    assert here.by_affinity is False, "a guest's podman is root's"


# ---- runc


def test_a_bundle_has_the_envelope_and_no_swap() -> None:
    resources = bundle_config(CONTAINER, {})["linux"]["resources"]
    assert resources["cpu"] == {"cpus": "0-1"}
    assert resources["memory"] == {"limit": 2 * GIB, "swap": 2 * GIB}


def test_a_bundle_has_no_capability_and_gains_none() -> None:
    process = bundle_config(CONTAINER, {})["process"]
    assert set(process["capabilities"]) == {"bounding", "effective", "inheritable", "permitted", "ambient"}
    assert not any(process["capabilities"].values())
    assert process["noNewPrivileges"] is True
    assert process["args"] == list(SLEEPER)
    assert process["rlimits"] == [
        {"type": "RLIMIT_NOFILE", "hard": 20000, "soft": 20000},
        {"type": "RLIMIT_NPROC", "hard": 1000, "soft": 1000},
    ]


def test_a_bundle_is_the_tree_read_only_under_its_own_name_and_namespaces() -> None:
    config = bundle_config(CONTAINER, {"defaultAction": "SCMP_ACT_ERRNO"})
    assert config["root"] == {"path": "/i/tree", "readonly": True}
    assert config["hostname"] == "virtbench-1"
    assert {n["type"] for n in config["linux"]["namespaces"]} == {"pid", "ipc", "uts", "mount", "network", "cgroup"}
    assert config["linux"]["seccomp"] == {"defaultAction": "SCMP_ACT_ERRNO"}
    assert config["linux"]["cgroupsPath"] == "/virtbench-1"
    assert "/proc/kcore" in config["linux"]["maskedPaths"]
    assert "/proc/sys" in config["linux"]["readonlyPaths"]
    assert json.loads(json.dumps(config)) == config


def test_a_bundle_mounts_nothing_of_the_host_but_what_gpus_need() -> None:
    assert not [m for m in bundle_config(CONTAINER, {})["mounts"] if m["type"] == "bind"]
    config = bundle_config(replace(CONTAINER, edits=EDITS), {})
    (bind,) = (m for m in config["mounts"] if m["type"] == "bind")
    assert (bind["source"], bind["destination"]) == ("/i/driver/580.1", "/run/nvidia")
    assert {"ro", "nosuid", "nodev"} < set(bind["options"])
    device, _ = config["linux"]["devices"]
    assert (device["path"], device["type"], device["major"], device["minor"]) == ("/dev/nvidia0", "c", 195, 0)


def test_a_bundle_may_touch_no_device_but_its_gpus() -> None:
    rules = bundle_config(CONTAINER, {})["linux"]["resources"]["devices"]
    assert rules == [{"allow": False, "access": "rwm"}]
    spec = replace(CONTAINER, edits=Edits((DeviceNode("/dev/nvidia0", 195, 0),)))
    rules = bundle_config(spec, {})["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert rules[1:] == [{"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}]


def test_each_switch_changes_its_own_property_of_a_bundle() -> None:
    plain = bundle_config(CONTAINER, {"defaultAction": "SCMP_ACT_ERRNO"})
    assert "seccomp" not in bundle_config(replace(CONTAINER, seccomp=False), {})["linux"]
    namespaces = bundle_config(replace(CONTAINER, network="/run/netns/n1"), {})["linux"]["namespaces"]
    assert {"type": "network"} in plain["linux"]["namespaces"]
    others = [each for each in plain["linux"]["namespaces"] if each != {"type": "network"}]
    assert [each for each in namespaces if each["type"] != "network"] == others
    assert {"type": "network", "path": "/run/netns/n1"} in namespaces
    cpu = bundle_config(replace(CONTAINER, by_count=True), {})["linux"]["resources"]["cpu"]
    assert cpu == {"quota": 200_000, "period": 100_000}
    held_back = bundle_config(replace(CONTAINER, cpu_share=0.9), {})["linux"]["resources"]["cpu"]
    assert held_back == {"cpus": CONTAINER.cpus, "quota": 180_000, "period": 100_000}
    usual = plain["linux"]["resources"]
    unlimited = bundle_config(replace(CONTAINER, memory_limited=False), {})["linux"]["resources"]
    assert {**unlimited, "memory": usual["memory"]} == usual
    assert "memory" not in unlimited
    limited = replace(CONTAINER, limited_disks=(DISK,), disk_limits=LIMITED.disk_limits)
    throttled = bundle_config(limited, {})["linux"]["resources"]
    assert throttled == {
        **usual,
        "blockIO": {
            f"throttle{way}{unit}Device": [{"major": 8, "minor": 0, "rate": rate}]
            for unit, rate in (("Bps", 32 << 20), ("IOPS", 9))
            for way in ("Read", "Write")
        },
    }


@pytest.mark.parametrize(("writable", "mode"), [(False, "ro"), (True, "rw")])
def test_a_bundle_has_the_data_volume(*, writable: bool, mode: str) -> None:
    (mount,) = [
        mount
        for mount in bundle_config(replace(CONTAINER, data=("/d", "/mnt/data", writable)), {})["mounts"]
        if mount["destination"] == "/mnt/data"
    ]
    assert (mount["source"], mount["options"]) == ("/d", ["bind", mode, "nosuid", "nodev"])


@pytest.mark.parametrize("engine", RUN_ARGV)
def test_a_volume_is_bound_without_what_is_mounted_below_it(engine: str) -> None:
    (mount,) = values(RUN_ARGV[engine](replace(CONTAINER, data=("/d", "/mnt/data", False))), "--mount")
    assert ",readonly,bind-nonrecursive" in mount


def test_every_target_has_the_same_limit_of_processes(fake_node: Callable[..., Any]) -> None:
    limit = str(most_processes(2))
    for run_argv in RUN_ARGV.values():
        assert values(run_argv(CONTAINER), "--pids-limit") == [limit]
    assert bundle_config(CONTAINER, {})["linux"]["resources"]["pids"] == {"limit": int(limit)}
    node = fake_node()
    cgroups.create(node, "g", Envelope(cpus=(0, 1), memory_bytes=GIB, threads=2))
    assert ["cgset", "-r", f"pids.max={limit}", "g"] in node.ran
    (words,) = values(qemu_argv(replace(VM, cpus=(0, 1))), "-append")
    assert f" sysctl.kernel.threads-max={2 * int(limit)}" in words


def test_file_systems_in_memory_have_half_of_the_envelope_in_every_target() -> None:
    size = str(tmpfs_bytes(CONTAINER.memory_bytes))
    assert size == str(Envelope(cpus=(0,), memory_bytes=2 * GIB, threads=1).tmpfs_bytes) == str(GIB)
    for run_argv in RUN_ARGV.values():
        argv = run_argv(replace(CONTAINER, memory_limited=False))
        assert values(argv, "--shm-size") == [size]
        assert values(argv, "--tmpfs") == [f"{path}:rw,exec,size={size}" for path in TMPFS]
    mounts = {mount["destination"]: mount["options"] for mount in bundle_config(CONTAINER, {})["mounts"]}
    assert all(f"size={size}" in mounts[path] for path in ("/dev/shm", *TMPFS))
    for user in (None, 1879048200):
        argv = chroot_argv("/i/tree", user=user, tmpfs_bytes=int(size))
        assert [argv[place - 1 : place + 2] for place, word in enumerate(argv) if word == "--perms"] == [
            [size, "--perms", "1777"]
        ] * 2
        assert values(argv, "--tmpfs") == ["/run", "/dev/shm", "/tmp"]
    setup = (REPOSITORY / "docker/guest/setup").read_text()
    assert re.findall(r"^mount .*\$\{VIRTBENCH_TMPFS:-50%\}\" tmpfs (\S+)$", setup, re.MULTILINE) == [
        "/tmp",
        "/dev/shm",
    ]


# ---- bare metal


@pytest.mark.parametrize(("writable", "bind"), [(False, "--ro-bind"), (True, "--bind")])
def test_bare_metal_sees_the_data_volume(*, writable: bool, bind: str) -> None:
    argv = chroot_argv("/i/tree", data=("/d", writable))
    place = argv.index("/d")
    assert argv[place - 1 : place + 2] == [bind, "/d", "/mnt/data"]


def test_bare_metal_is_pinned_and_enters_the_tree_read_only() -> None:
    assert taskset((0, 2)) == ["taskset", "--cpu-list", "0,2"]
    argv = chroot_argv("/i/tree", Edits(mounts=(("/a", "/b"),)))
    assert argv[0] == "bwrap"
    assert argv[-1] == "--"
    assert "--die-with-parent" in argv
    first = argv.index("--ro-bind")
    assert argv[first + 1 : first + 3] == ["/i/tree", "/"]
    last = len(argv) - 1 - argv[::-1].index("--ro-bind")
    assert argv[last + 1 : last + 3] == ["/a", "/b"]
    assert not [word for word in argv if word.startswith("--unshare")], "no namespace that bare metal does not have"


def test_confined_bare_metal_is_a_user_of_its_own_with_the_devices_of_a_container_and_its_gpus() -> None:
    argv = chroot_argv("/i/tree", EDITS, user=1879048200)
    becoming = argv[argv.index("--") + 1 :]
    assert becoming[:3] == ["/usr/bin/setpriv", "--reuid=1879048200", "--regid=1879048200"]
    assert set(NO_PRIVILEGES) < set(becoming)
    assert "/dev" not in values(argv, "--dev-bind")
    assert values(argv, "--dev-bind") == [device.path for device in EDITS.devices]
    folder = argv.index("/dev/nvidia-caps")
    assert argv[folder - 3 : folder] == ["--perms", "0755", "--dir"], "open to the user"
    assert folder < argv.index("--dev-bind")
    assert argv.index("--dev") < argv.index("--dev-bind"), "laid over the others"
    assert values(argv, "--perms") == ["1777", "1777", "0755"]
    assert values(chroot_argv("/i/tree"), "--dev-bind") == ["/dev"], "as root it has all devices"


# ---- SSH


def test_ssh_believes_no_host_but_the_guest_and_uses_nothing_of_this_user() -> None:
    argv = SshAccess("/r/vm-1", 2222).argv()
    options = values(argv, "-o")
    assert argv[:3] == ["ssh", "-F", "none"]
    assert {"StrictHostKeyChecking=yes", "BatchMode=yes", "IdentitiesOnly=yes", "GlobalKnownHostsFile=none"} < set(
        options
    )
    assert {"UserKnownHostsFile=/r/vm-1/known_hosts", "IdentityFile=/r/vm-1/client_key"} < set(options)
    assert values(argv, "-p") == ["2222"]
    assert argv[-1] == "root@127.0.0.1"


def test_the_words_of_a_command_follow_the_destination_as_one_string() -> None:
    access = SshAccess("/r", 1)
    argv = access.wrap(["echo", "a b"])
    assert argv == [*access.argv("-T"), "--", "echo 'a b'"]


words = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


@settings(max_examples=40)
@given(st.lists(words, min_size=1, max_size=5))
def test_words_come_through_a_real_shell_as_they_are(arguments: list[str]) -> None:
    far_side = SshAccess("/r", 1).wrap(["printf", "%s\\0", *arguments])[-1]
    said = subprocess.run(["sh", "-c", far_side], capture_output=True, check=True).stdout
    assert said.decode().split("\0")[:-1] == arguments


@pytest.mark.parametrize(
    "word", ["", " ", "a b", "'", '"', "; exit 3", "$(exit 3)", "`exit 3`", "a\nb", "*", "~", "\\"]
)
def test_what_a_shell_would_take_apart_comes_through_ssh_as_one_word(word: str) -> None:
    far_side = SshAccess("/r", 1).wrap(["printf", "<%s>", word, "end"])[-1]
    done = subprocess.run(["sh", "-c", far_side], capture_output=True, check=True)
    assert done.stdout.decode() == f"<{word}><end>"


def test_a_free_port_can_be_listened_on() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        assert listener.getsockname()[1] > 1023


Builder = Callable[[ContainerSpec], list[str]]


@pytest.mark.parametrize("build", RUN_ARGV.values(), ids=list(RUN_ARGV))
def test_every_word_of_a_container_command_is_text(build: Builder) -> None:
    assert all(isinstance(word, str) and word for word in build(CONTAINER))


# ---- where a data set lies


def test_virtiofsd_sees_the_directory_read_only_and_can_write_to_its_socket_alone() -> None:
    argv = virtiofs.daemon_argv("/usr/libexec/virtiofsd", "/a,b", "/run/vm/data.socket", (2, 3))
    assert argv[:4] == ["taskset", "--cpu-list", "2-3", "bwrap"]
    words = " ".join(argv)
    assert "--ro-bind / / --dev-bind /dev /dev" in words
    assert "--tmpfs /run --bind /run/vm /run/vm --ro-bind /a,b /run/data --" in words
    assert values(argv, "-o") == ["source=/run/data", "cache=auto"]
    assert virtiofs.daemon_argv("v", "/d", "/run/vm/s", None)[0] == "bwrap"


def test_a_guest_with_a_shared_directory_shares_exactly_its_memory() -> None:
    argv = virtiofs.qemu_words("/run/vm/data.socket", 2 * GIB)
    assert values(argv, "-object") == ["memory-backend-memfd,id=memory,size=2048M,share=on"]
    assert values(argv, "-machine") == ["memory-backend=memory"]
    assert values(argv, "-device") == [f"vhost-user-fs-pci,chardev=data,tag={virtiofs.TAG}"]


@pytest.mark.parametrize("engine", RUN_ARGV)
def test_a_container_with_data_in_its_own_layer_can_write_to_it_and_binds_nothing(engine: str) -> None:
    argv = RUN_ARGV[engine](replace(CONTAINER, layer=("/set", "/mnt/data", "/scratch")))
    assert "--read-only" not in argv
    assert "--mount" not in argv
    assert "--read-only" in RUN_ARGV[engine](replace(CONTAINER, data=("/set", "/mnt/data", False)))


def test_runc_lays_the_data_over_the_trees_own_directory() -> None:
    config = bundle_config(replace(CONTAINER, layer=("/set", "/mnt/data", "/scratch")), {})
    (overlay,) = (each for each in config["mounts"] if each["type"] == "overlay")
    assert overlay["destination"] == "/mnt/data"
    assert overlay["options"][:3] == ["lowerdir=/i/tree/mnt/data", "upperdir=/scratch/upper", "workdir=/scratch/work"]
    assert config["root"]["readonly"] is True


def test_a_container_that_is_gone_is_removed_and_any_other_failure_is_raised(fake_node: Callable[..., Any]) -> None:
    gone = {("podman", "rm"): Completed(1, "", "Error: no container with name or ID found: No such container")}
    PODMAN.remove(fake_node(gone), "c1")
    for engine, words in ((PODMAN, ("podman", "rm")), (RUNC, ("runc",))):
        with pytest.raises(CommandError, match="device is busy"):
            engine.remove(fake_node({words: Completed(1, "", "device is busy")}), "c1")
    node = fake_node()
    RUNC.remove(node, "c1")
    assert node.ran == RUNC.removal("c1")
    assert len(node.ran) == 4
