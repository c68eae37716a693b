"""Opens a target with GPUs of ``tests.stand_ins``, some after others, and prints what is seen: TARGET PLACE GPUS...

It is a program, because the libraries have to be where the dynamic loader of a process looks from its start.
"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path

from provisioning import gpu_driver
from provisioning.gpus import edits_for
from provisioning.images.image import current
from provisioning.layers.userland import own_environment
from provisioning.nodes import local_node
from provisioning.targets import Choices, layers
from scenarios.job import clean_environment
from suite.interfaces import open_stack
from suite.job.ablations import properties_of
from suite.job.properties import AS_IT_IS
from tests.integration.machine import ENVELOPE

LOOKS = """
import ctypes, json, os
from pathlib import Path
seen = {"init": ctypes.CDLL("libcuda.so.1").cuInit(5), "devices": {}}
for file in sorted(map(str, Path("/dev").rglob("nvidia*"))):
    if not os.path.isdir(file):
        with open(file, "rb") as device:
            seen["devices"][file] = len(device.read(1))
seen["variables"] = {name: value for name, value in os.environ.items() if "CUDA" in name or name == "LD_LIBRARY_PATH"}
seen["user"] = os.geteuid()
print(json.dumps(seen))
"""


def seen_in(target: str, gpus: str) -> dict[str, object]:
    target, _, switched = target.partition("+")
    target, _, engine = target.partition(":")
    choices = Choices(current(), engine or "runc", "tcg", tuple(gpus.split(",")))
    properties = properties_of(switched) if switched else AS_IT_IS
    stacked = layers(target, choices, ENVELOPE, properties=properties) if target != "own-environment" else None
    with ExitStack() as stack:
        machine = stack.enter_context(local_node(ENVELOPE.cpus, str(choices.image.tree)))
        if stacked:
            node = stack.enter_context(open_stack(machine, stacked))
        else:
            node = own_environment(machine, ENVELOPE.cpus, edits_for(machine, choices.gpus, place=None))
        words = [*clean_environment(1, "reference", **node.variables), node.python[0], "-c", LOOKS]
        return {**json.loads(node.run(words).stdout), "facts": node.facts["gpus"]}


opened, place, *given = sys.argv[1:]
gpu_driver.CAPABILITIES = Path(place)
print(json.dumps([seen_in(opened, gpus) for gpus in given]))
