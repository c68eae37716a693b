"""GPUs that a job can compute on: as many as it wants, new enough for the image's CUDA, and within its reach."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from provisioning.engines.base import get_engine
from provisioning.gpus import Card
from provisioning.images.image import Image, build_command
from suite.errors import RequestError, option
from suite.request.request import RunRequest
from suite.request.scenario import scenario_of
from suite.units import count

CUDA_NEEDS: dict[str, tuple[int, tuple[int, ...]]] = {"13": (580, (7, 5)), "12": (525, (5, 0)), "11": (450, (3, 5))}
"""The oldest driver and compute capability by the major version of CUDA (NVIDIA's release notes of each toolkit)."""
_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<alone>a?)f?")
GUESTS_WITHOUT_GPUS = "virtual machines with GPUs are not supported yet"
"""No device of PCI is given to a guest that the suite boots: nothing here reads the groups of an IOMMU."""
WITHOUT_GUESTS = "leave vm and container-vm out"
MPS = Path("/tmp/nvidia-mps/control")  # noqa: S108 (the default of NVIDIA's daemon)


def workers_here(request: RunRequest) -> int:
    """Return how many workers of a job need GPUs for themselves on one machine."""
    scenario = scenario_of(request)
    if scenario.spread and not request.joining.inventory:
        return scenario.ranks(request)[0]
    return 1


def _share_of(request: RunRequest, gpus: int) -> int:
    """Return how many GPUs each of the instances that share the machine has; too few are shared by all."""
    scenario = scenario_of(request)
    return gpus // (scenario.instances(request) if scenario.neighbours else 1) or gpus


def check_gpus(request: RunRequest, image: Image, cards: Sequence[Card]) -> None:
    """Raise RequestError where a job cannot compute on these GPUs."""
    for holds, sentence, remedy in _hindrances(request, image, cards):
        if holds:
            raise RequestError(sentence, remedy=remedy)


def _hindrances(request: RunRequest, image: Image, cards: Sequence[Card]) -> list[tuple[bool, str, str]]:
    """Return what may keep a job from the GPUs: whether it does, the message, and the remedy."""
    cuda = image.cuda
    wanted = request.gpus.devices or 1
    several = option("devices")
    workers = workers_here(request)
    share = _share_of(request, len(cards))
    engine = request.targets.engine
    older = f"build the image for an older CUDA: {build_command('cuda')} 12.6, or update the driver"
    return [
        (
            bool(engine) and not get_engine(str(engine)).takes_gpus,
            f"{option('engine')} {engine} does not go with {option('device')} cuda",
            f"leave one of them out, or use {option('engine')} podman",
        ),
        (
            not cards,
            f"{option('device')} cuda: there is no GPU",
            f"use {option('device')} cpu; bench doctor shows the GPUs, and CUDA_VISIBLE_DEVICES may hide them",
        ),
        (
            workers > 1 and len(cards) < workers * wanted,
            f"{option('workers')} {workers}: each needs {count(wanted, 'GPU')}, and the job has {len(cards)}",
            f"name more with {option('gpus')}, or give fewer {option('workers')} or {several}",
        ),
        (wanted > 1 and request.gpus.parallel == "none", f"{several} {wanted} needs {option('parallel')}", "add it"),
        (
            share < wanted,
            f"{several} {wanted}: an instance has {count(share, 'GPU')}",
            f"name more with {option('gpus')}",
        ),
        (
            cuda == "",
            f"{option('device')} cuda: the torch of image {image.digest[:12]} is built for CPUs",
            f"run: {build_command('cuda')}",
        ),
        (
            any(card.uuid for card in cards) and (MPS.exists() or "CUDA_MPS_PIPE_DIRECTORY" in os.environ),
            "MPS runs on this machine, and no target reaches it: each has users and a /tmp for itself",
            "stop it: echo quit | nvidia-cuda-mps-control",
        ),
        *((True, sentence, older) for sentence in _outdated(str(cuda), cards)),
        *((True, sentence, remedy) for sentence, remedy in _without_code(image.gpu_architectures, cards)),
    ]


def _outdated(cuda: str, cards: Sequence[Card]) -> Iterator[str]:
    """Yield the cards that are too old for the image's CUDA, or have too old a driver."""
    major = cuda.partition(".")[0]
    driver, capability = CUDA_NEEDS.get(major, (0, ()))
    for card in cards:
        served = card.cuda is not None and major.isdigit() and card.cuda // 1000 >= int(major)
        if 0 < card.driver_branch < driver and not served:
            yield f"GPU {card.index}: CUDA {cuda} needs driver {driver}, not {card.driver}"
        if card.capability and tuple(card.capability) < capability:
            needed, there = (".".join(map(str, numbers)) for numbers in (capability, card.capability))
            yield f"GPU {card.index}: CUDA {cuda} needs capability {needed}, not {there}"


def _without_code(architectures: Sequence[str], cards: Sequence[Card]) -> Iterator[tuple[str, str]]:
    """Yield the cards that the image's torch has no code for, which is known if there are ``architectures``.

    Compiled code (sm_90, sm_100f) runs on later minor versions of its capability, PTX (compute_90) on all later ones;
    that with an a (sm_90a) runs on its own alone (CUDA C++ Programming Guide, compute capabilities).
    """
    compiled = [match for name in architectures if (match := _ARCHITECTURE.fullmatch(name))]
    for card in cards:
        if not compiled or not card.capability or any(_runs(code, tuple(card.capability)) for code in compiled):
            continue
        there = ".".join(map(str, card.capability))
        sentence = f"GPU {card.index} has capability {there}, and torch code for {', '.join(architectures)}"
        if tuple(card.capability) > min(map(_capability, compiled)):
            other = "a newer CUDA, or use an image with a newer torch (--from)"
        else:
            other = "an older CUDA"
        yield sentence, f"build the image for {other}: {build_command('cuda')}"


def _capability(code: re.Match[str]) -> tuple[int, int]:
    return int(code["major"]), int(code["minor"])


def _runs(code: re.Match[str], card: tuple[int, ...]) -> bool:
    built_for = _capability(code)
    if code["alone"]:
        return card == built_for
    return card >= built_for and (code["kind"] == "compute" or card[0] == built_for[0])
