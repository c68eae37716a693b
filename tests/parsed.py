"""What is read from what people and other programs write. ``python -m tests.parsed`` renews ``samples/parsed.txt``.

The questions there are written by hand: the name of a form, and a text or an object as JSON. An answer is what was read
or refused.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pydantic import ValidationError

from commands.web.generate import read_services
from provisioning import isa
from provisioning.batch.options import KubernetesOptions, SlurmOptions
from provisioning.cgroup import limits
from provisioning.cgroup.counters import ControlGroup
from provisioning.clouds.nova import _unfair
from provisioning.engines.base import get_engine
from provisioning.engines.gvisor import GVISOR
from provisioning.engines.options import nodes_of
from provisioning.engines.runc import bundle_profile
from provisioning.gpus import Card
from provisioning.gpus import chosen as gpus_named
from provisioning.images.image import Image
from provisioning.images.needs import check
from provisioning.kubernetes.claims import ClaimedData
from provisioning.kubernetes.execution import exit_status
from provisioning.kubernetes.node import ClusterNode
from provisioning.kubernetes.refusals import cause_of, refusal, refused_as_request
from provisioning.kubernetes.states import JobState, PodState, events_of, last_event
from provisioning.lab import connectivity
from provisioning.lab.lab import free_subnet
from provisioning.machines.accelerator import PROGRAM
from provisioning.machines.libvirt import URI_VARIABLE, uri
from provisioning.machines.qemu import QEMU
from provisioning.metrics import conditions
from provisioning.metrics.accounting import own_cpus
from provisioning.metrics.cache_counters import cache_use
from provisioning.remote.connection import Access, RemoteAgent
from provisioning.remote.network import chosen
from provisioning.sites import here
from provisioning.timers.base import parse_schedule
from suite.errors import BenchError, MeasurementError
from suite.interfaces import Completed
from suite.inventory import InventoryNode, read_inventory
from suite.job.command import CommandJob, parse_command, parse_throughput
from suite.job.datasets import parse_data
from suite.job.envelope import parse_bytes, parse_cpu_list
from suite.job.job import CpuCapability
from suite.job.lab import LabSpec, bits_per_s, parse_lab, seconds
from suite.job.serving import parse_rates
from suite.records.columns import JOULES
from suite.request.request import RunRequest
from suite.request.scenario import scenario_of
from suite.sweep.file import read_sweep
from suite.units import parse_duration_s, parse_share
from tests.provisioning.conftest import FakeNode, make
from tests.provisioning.test_own_image import EVERYTHING, Inside
from tests.refusals import read, written
from tests.sites import IMAGE, cluster, inputs_of, joined_pods
from tests.suite.judged import JUDGED
from tests.worker.judged import READ

TRANSCRIPT = Path(__file__).parent / "samples/parsed.txt"


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[str], object]:
    def reading(text: str) -> object:
        with TemporaryDirectory() as directory, chdir(directory):
            Path(name).write_text(text)
            return read(Path(name))

    return reading


def inventory(path: Path) -> object:
    return [node.model_dump(exclude_defaults=True) for node in read_inventory(path).nodes]


def nodes(text: str) -> object:
    """Return the nodes by target that ``--node`` names for pods, also on a virtual machine."""
    request = RunRequest.of({"engine": "kubernetes", "target": ("container", "container-vm"), "node": text})
    return nodes_of(request.value("node"))


def schedule(text: str) -> object:
    found = parse_schedule(text)
    return found.cron, found.on_calendar


def vm_pods(asked: tuple[list[str], str | None]) -> object:
    """Return that these targets go together with this node for those on a virtual machine."""
    targets, vm_node = asked
    site = cluster(tuple(targets), vm_node=vm_node)
    site.refuse(inputs_of(RunRequest.of({"engine": "kubernetes"})), {})
    return site.targets


LINKS: list[dict[str, Any]] = [
    {"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}]},
    {"ifname": "eth0", "addr_info": [{"local": "10.0.0.1"}, {"local": "10.0.0.9"}]},
    {"ifname": "eth1", "addr_info": [{"local": "10.1.0.1"}]},
    {"ifname": "eth2", "addr_info": []},
]
LINKED = FakeNode({("ip",): Completed(0, json.dumps(LINKS), "")})


def told(fault: MeasurementError | None) -> object:
    return fault and (fault.kind, fault.message, fault.remedy)


def state(now: PodState) -> object:
    faults = {"failure": now.failure, "hindrance": now.hindrance}
    return now.state, now.reason, now.begun, {name: told(fault) for name, fault in faults.items() if fault}


def server_answer(answer: tuple[int, str]) -> object:
    refused = refusal("POST", "/pods", answer[0], json.dumps({"message": answer[1]}))
    try:
        with refused_as_request():
            raise refused
    except BenchError as error:
        return type(error).__name__, refused.kind, refused.status, error.message, error.remedy


def default_node(nodes: Mapping[str, tuple[str, str, Any]]) -> object:
    """Return the node of pods that nobody names, of some with a boot, a machine and a specification.

    This machine is "own", and "here" its boot.
    """
    items = [
        {"metadata": {"name": name}, "spec": spec, "status": {"nodeInfo": {"bootID": boot, "machineID": machine}}}
        for name, (boot, machine, spec) in nodes.items()
    ]
    cluster: Any = SimpleNamespace(context="kind", get=lambda path: {"items": items} if path[-5:] == "nodes" else {})
    own = SimpleNamespace(is_file=lambda: True, read_text=lambda: "own\n")
    with patch.multiple("provisioning.kubernetes.node", boot_id=lambda: "here", MACHINE_ID=own):
        node = ClusterNode.find(cluster, None)
        return node.name, "here" if node.here else "elsewhere"


def containerd(asked: tuple[str, str, dict[str, object]]) -> str:
    """Return the socket for a node of this runtime, this kubelet and this configuration of the kubelet."""
    info = {"containerRuntimeVersion": asked[0], "kubeletVersion": asked[1]}
    return ClusterNode({"metadata": {"name": "n1"}, "status": {"nodeInfo": info}}, asked[2]).containerd


def events(items: object) -> object:
    cluster: Any = SimpleNamespace(path=lambda *_: "/", get=lambda *_, **__: {"items": items})
    return [each["reason"] for each in events_of(cluster, "p")], last_event(events_of(cluster, "p"))


def lost(asked: tuple[str, dict[str, object]]) -> object:
    """Return what is made of the last words of an ssh to a machine of the inventory with these keys."""
    agent: Any = object.__new__(RemoteAgent)
    agent._access = Access(InventoryNode.model_validate({"name": "n1", "host": "root@n1", **asked[1]}), "/socket")
    agent._process, agent._printed = SimpleNamespace(output_tail=lambda: asked[0]), []
    return told(agent.lost())


CARDS = [
    Card(str(number), "H100", "580.1", f"GPU-{number}0000000", (9, 0), devices=(f"/dev/nvidia{number}",))
    for number in range(3)
]
CARDS[1] = replace(CARDS[1], fault="NVML: GPU is lost")


DIVIDED = [
    *(Card(str(number), uuid=f"GPU-000000a{number}-5000") for number in (0, 1)),
    *(Card("2", fault="NVML: GPU is lost"), Card("3", uuid="GPU-000000a3-5000", fault="it is divided by MIG")),
    *(Card(f"3:{number}", uuid=f"MIG-000000b{number}-5000") for number in (0, 1)),
]


def gpus(asked: tuple[dict[str, Any], dict[str, Any]]) -> object:
    """Return the GPUs of a job with these options, where the first card, torch's CUDA and variables are changed."""
    options, changed = asked
    cards = [replace(CARDS[0], **changed.get("card", {})), *CARDS[1:]]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CUDA")}
    variables |= {name: value for name, value in changed.items() if name.startswith("CUDA")}
    with (
        patch.dict(os.environ, variables, clear=True),
        patch.object(here, "examined", lambda: (cards, None, None)),
        patch.object(Image, "cuda", changed.get("cuda", "13.0")),
    ):
        return [card.index for card in here._cards_of(RunRequest.of({"device": "cuda", **options}), IMAGE)]


def parallel(options: dict[str, Any]) -> str:
    """Return that these options of a job on several GPUs go together."""
    request = RunRequest.of({"device": "cuda", **options})
    scenario_of(request).check_model(request, "gan" if request.scenario == "serve" else "resnet50")
    return "goes"


def emulation(version: str) -> object:
    """Return the vector instructions of guests under tcg and under KVM, by QEMU's version, on a host with AVX-512."""
    node: Any = FakeNode({(PROGRAM, "--version"): Completed(0, version, "")})
    return QEMU.guest_capability(node, "tcg", "avx512"), QEMU.guest_capability(node, "kvm", "avx512")


def seccomp(profile: dict[str, Any] | str) -> object:
    """Return what of a profile goes into a bundle; only some of its fields may be given."""
    usual = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []}
    return bundle_profile(profile if isinstance(profile, str) else json.dumps({**usual, **profile}))


def group(files: dict[str, str]) -> object:
    """Return what the control group of a job has used and may use, by files below the root of control groups."""
    devices: tuple[list[str], ...] = (["8:0"], ["8:0", "8:16"], ["8:0", "8:32"], ["8:0", "8:48"], ["8:48"], [])
    with TemporaryDirectory() as place, patch.object(limits, "ROOT", Path(place)):
        job = ControlGroup(ControlGroup.named("job").paths, make(Path(place), files))
        used = job.cpu_s(), job.peak_memory_bytes(), job.faults(), job.disk_bytes(), job.throttled_s()
        return *used, [[*job.disk_limits(each).values()] for each in devices], limits.disks_can_be_limited()


def energy(readings: list[dict[str, str]]) -> object:
    """Return the joules between two readings of RAPL, by files of powercap, and their sum as a record has it."""
    with TemporaryDirectory() as place, patch.object(conditions, "POWERCAP", Path(place)):
        before, after = (conditions.read_energy() for files in readings if make(Path(place), files))
    spent = conditions.joules(before, after)
    return spent, JOULES.derive and JOULES.derive(spent)


def cap(asked: tuple[list[str], CpuCapability | None, bool]) -> object:
    """Return the cap of a host with AVX-512 and guests of this level, and what is noted; None are not to be asked."""
    notes: list[str] = []
    targets, level, always = asked
    guest: Any = None
    cpuinfo = SimpleNamespace(read_text=lambda: "flags: avx2 fma avx512f avx512bw avx512dq avx512vl\n")
    guests = (lambda *_: level) if level else None
    with patch.multiple(isa, CPUINFO=cpuinfo, _of_guests=guests):
        return isa.shared(targets, QEMU, guest, notes.append, always=always), notes


def cpus_alone(asked: tuple[list[list[int] | None], int]) -> object:
    """Return the CPUs of the first nodes, so many, that no other node may use."""
    nodes: list[Any] = [FakeNode(facts={"host_cpus": cpus}) for cpus in asked[0]]
    return own_cpus(nodes, nodes[: asked[1]])


def image(asked: tuple[list[str], dict[str, str], object]) -> object:
    """Return that an image can be that of targets which lacks programs, has others, and whose Python says this."""
    lacking, more, reported = asked
    programs = {name: path for name, path in EVERYTHING.items() if name not in lacking} | more
    return check(Inside(programs, reported), Path("/i/tree"), Path("/suite/tree"), "mine")  # type: ignore[func-returns-value]


def platform(asked: tuple[str | None, str]) -> object:
    """Return the platform of gVisor that was chosen, or is preferred, of those that runsc shows in its help."""
    node = FakeNode({("runsc", "flags"): Completed(0, "", f"specifies which platform to use: {asked[1]}")})
    return GVISOR.configured({"gvisor_platform": asked[0]} if asked[0] else {}).platform(node)


def daemon(given: str) -> str:
    with patch.dict(os.environ, {URI_VARIABLE: given}):
        return uri()


def service(asked: tuple[str, tuple[int, str]]) -> object:
    """Return that the machine which an engine's service reports is the one that its program runs on."""
    memory = Completed(0, "MemTotal:        8388608 kB\nMemFree: 1 kB\n", "")
    own = {("uname",): Completed(0, "h1 6.1.0-18-amd64\n", ""), ("cat", "/proc/meminfo"): memory}
    return get_engine(asked[0]).check_machine(FakeNode({(asked[0], "info"): Completed(*asked[1], ""), **own}))  # type: ignore[func-returns-value]


FORMS: Mapping[str, Callable[[Any], object]] = {
    **JUDGED,
    **READ,
    "share": parse_share,
    "span": parse_duration_s,
    "cpus": parse_cpu_list,
    "memory": parse_bytes,
    "data": parse_data,
    "claim": lambda text: (claimed := ClaimedData.of(text)) and tuple(claimed),
    "lab": lambda text: (spec := parse_lab(text)).nodes and (spec.nodes, spec.rate_bits_per_s, spec.delay_s),
    "stored-lab": lambda values: str(LabSpec.model_validate(values)),
    "routes": free_subnet,
    "place": lambda words: chosen("n1", connectivity.places_of(LINKED), *words),
    "pod": lambda asked: state(PodState.of(asked.get("pod"), asked.get("events", ()))),
    "job": lambda asked: state(JobState.of_job({"metadata": {"name": "j"}, "status": asked}, asked["pods"])),
    "exit": lambda message: exit_status(json.dumps(message).encode()),
    "gpus": gpus,
    "parallel": parallel,
    "lost": lost,
    "node": default_node,
    "containerd": containerd,
    "events": events,
    "cause": lambda text: told(cause_of(text)),
    "answer": server_answer,
    "flavor": lambda specs: [*_unfair(specs)],
    "vectors": isa.capability,
    "cap": cap,
    "group": group,
    "own-cpus": cpus_alone,
    "energy": energy,
    "cards": lambda words: [card.index for card in gpus_named(DIVIDED, words)],
    "emulation": emulation,
    "seccomp": seccomp,
    "image": image,
    "platform": platform,
    "daemon": daemon,
    "cache": lambda asked: {name: value for name, value in asdict(cache_use(*asked)).items() if value is not None},
    "service": service,
    "iperf3": connectivity.parse,
    "whole-cpus": lambda written: ClusterNode({"status": {"allocatable": {"cpu": written}}}, {}).whole_cpus,
    "rate": bits_per_s,
    "delay": seconds,
    "rates": parse_rates,
    "schedule": schedule,
    "command": lambda text: (words := parse_command(text), CommandJob(argv=words).name),
    "throughput": parse_throughput,
    "inventory": in_file("hosts.toml", inventory),
    "services": in_file("services.toml", read_services),
    "nodes": nodes,
    "joined-pods": lambda options: joined_pods((4,), (7,), **options)[0].network,
    "vm-pods": vm_pods,
    "plan": lambda table: read_sweep({"name": "night"} | table, "p.toml").model_dump(
        exclude_defaults=True, mode="json"
    ),
    "slurm": lambda table: SlurmOptions.model_validate(table).model_dump(exclude_defaults=True, mode="json"),
    "kubernetes": lambda table: KubernetesOptions.model_validate({"image": "bench"} | table).model_dump(
        exclude_defaults=True, mode="json"
    ),
}


def answer_to(question: str) -> str:
    """Return what is read, or the message of what is refused and its remedy."""
    form, _, text = question.partition(" ")
    try:
        return repr(FORMS[form](json.loads(text)))
    except BenchError as error:
        return f"refused: {error.message}\n  what to do: {error.remedy}"
    except ValidationError as error:
        return f"refused: {error.errors(include_url=False)[0]['msg']}"
    except ValueError as error:
        return f"refused: {error}"


if __name__ == "__main__":
    questions = read(TRANSCRIPT.read_text(), ">")
    TRANSCRIPT.write_text(written({each: answer_to(each) for each in questions}, ">", "parsed"))
