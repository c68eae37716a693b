"""The stages A and P: what the machine is, and an image of its own Python with the driver in its targets."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pynvml

from gpu_stages.day import REPOSITORY, Day, Facts, Found, text_of

NVML = (
    *("Name", "UUID", "PciInfo", "MemoryInfo", "UtilizationRates", "TotalEnergyConsumption", "PowerUsage"),
    *("EnforcedPowerLimit", "PersistenceMode", "EccMode", "MigMode", "CurrentClocksEventReasons"),
    *("CudaComputeCapability", "ComputeRunningProcesses", "GraphicsRunningProcesses", "MinorNumber"),
)
FIRST_CONVOLUTION = """
import json, sys, time
begin = time.monotonic(); import torch; imported = time.monotonic()
images = torch.rand(8, 3, 64, 64, device=sys.argv[1]); placed = time.monotonic()
torch.nn.Conv2d(3, 8, 3).to(sys.argv[1])(images).sum().item(); done = time.monotonic()
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(json.dumps({"import_s": imported - begin, "init_s": placed - imported, "convolution_s": done - placed,
                  "host_memory_kib": int(peak), "torch": torch.__version__, "cuda": torch.version.cuda}))
"""
WANTED_BYTES = 24 << 30
"""The host memory that is wanted: on a lent machine MemTotal may begin small and grow with its use."""
LIBCUDA = "import ctypes, json, os; print(json.dumps([ctypes.CDLL('libcuda.so.1').cuInit(0), os.geteuid()]))"


def facts_of_the_machine(day: Day) -> Found:
    """Touch the memory; record NVML's answers, device files, and torch on the device."""
    from provisioning.sites.memory import touch

    total_bytes = touch(0 if day.options.rehearse else WANTED_BYTES)
    driver = text_of(pynvml.nvmlSystemGetDriverVersion())
    yield {"memory, GiB": total_bytes >> 30, "memory that trials are given, GiB": day.memory_gib, "driver": driver}
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    answers = {}
    for name in NVML:
        try:
            answers[name] = str(getattr(pynvml, f"nvmlDeviceGet{name}")(handle))
        except pynvml.NVMLError as error:
            answers[name] = f"error: {error}"
    yield {"nvml": answers, "devices": sorted(str(path) for path in Path("/dev").glob("nvidia*"))}
    cache = subprocess.run(["/sbin/ldconfig", "-p"], check=False, capture_output=True, text=True).stdout
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if " / " in line or "cgroup" in line]
    yield {"libraries": re.findall(r"(lib(?:cuda|nvidia-ml)\.so\S*) .*=> (\S+)", cache), "mounts": mounts}
    torch = day.program("-c", FIRST_CONVOLUTION, day.device)
    yield {"torch": json.loads(torch.stdout) if torch.returncode == 0 else torch.stderr[-500:]}


def adopted(day: Day) -> Found:
    """Adopt an image of this machine's Python, and look for libcuda inside of the targets."""
    sites = [word for site in day.options.sites for word in ("--site", str(site))]
    image = day.bench("image", "adopt", "--python", sys.executable, *sites).strip()
    yield {"image": image}
    rehearse = ["--rehearse"] if day.options.rehearse else []
    words = ("--state", str(day.options.state), "--image", image, *rehearse)
    found: Facts = {}
    for target in ("bare-metal", "container"):
        ended = day.program(str(REPOSITORY / "benchmarks/gpu_day.py"), "--libcuda", target, *words)
        found[f"libcuda in {target}: cuInit, uid"] = (ended.stdout or ended.stderr).strip()[-300:]
    reached = [answer.startswith("[0,") for answer in found.values()]
    yield {**found, "targets without libcuda": reached.count(False)}


def print_libcuda(target: str, digest: str, state: Path, *, rehearse: bool) -> None:
    """Print what cuInit answers inside a target, by /run/nvidia, and the user; a rehearsal plays the library."""
    from provisioning.gpu_driver import collected
    from provisioning.gpus import Edits
    from provisioning.images.image import find, mounted
    from provisioning.layers import container, userland
    from provisioning.nodes import local_node
    from provisioning.targets import Choices, layers
    from scenarios.job import clean_environment
    from suite.interfaces import open_stack
    from suite.job.envelope import GIB, Envelope

    image = find(digest)
    gpus: tuple[str, ...] = ()
    if rehearse:
        os.environ["LD_LIBRARY_PATH"] = str(state / "stub")
        libraries = str(collected(str(state / "driver")))
        edits = Edits((), ((libraries, "/run/nvidia"),), {"LD_LIBRARY_PATH": "/run/nvidia"})
        for module in (userland, container):
            vars(module)["edits_for"] = lambda *_, **__: edits
    else:
        pynvml.nvmlInit()
        gpus = (text_of(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))),)
    envelope = Envelope(cpus=tuple(sorted(os.sched_getaffinity(0)))[:2], memory_bytes=8 * GIB, threads=1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mounted(image, image.tree))
        machine = stack.enter_context(local_node(envelope.cpus, str(image.tree), None, image.python))
        node = stack.enter_context(open_stack(machine, layers(target, Choices(image, "runc", "tcg", gpus), envelope)))
        print(node.run([*clean_environment(1, "reference", **node.variables), node.python[0], "-c", LIBCUDA]).stdout)
