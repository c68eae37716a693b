"""One job: from the specification to the measured steps. The first module that imports torch."""

import math
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, cast

import torch
from msgspec.structs import replace

from worker import environment
from worker.data.batches import LoaderUse, together, watching_loaders
from worker.environment import whole_usage
from worker.protocol import Events, JobError
from worker.serving.generator import Generator, write_model
from worker.spec import Spec
from worker.training import checkpoint, ddp
from worker.training.build import build_trainer, opened_batches
from worker.training.device import (
    Device,
    numerics_of,
    open_devices,
    peak_memory,
    set_threads,
    torch_facts,
    torchvision_version,
)
from worker.training.injury import Injector
from worker.training.measure import measure, take_turns
from worker.training.step import Samples
from worker.training.trainer import Single
from worker.weights import drawn_sha256

WINDOW_S = 1.0
WINDOWS = 3
LEVEL = 0.05
"""Steps are level when the means of the last windows lie within this share of each other."""
MOST_S = 60.0
"""A GPU that is throttled or shared would never be level."""
MARGIN = 1.1
"""What a job takes more steps than would last just long enough, as steps may be faster later."""
ROUND = (1, 1.5, 2, 3, 5, 7, 10)
"""The leading digits of numbers of steps."""


def run(spec: Spec, events: Events) -> None:
    """Run the job and emit everything from ``imported`` to ``done``. Raises JobError."""
    version = torchvision_version()
    events.emit("imported")
    torch.set_num_interop_threads(1)
    set_threads(spec.threads)
    numerics_of(spec.recipe, spec.device).apply()
    devices = open_devices(spec.device, spec.devices, timed=not spec.sync)
    with watching_loaders(), ddp.opened(spec, events) if spec.parallel == "ddp" else nullcontext() as group:
        seen = {**environment.collect(), **torch_facts(spec.device), "torchvision": version}
        seen |= {"memory_format": "channels-last"} if spec.channels_last else {}
        events.emit("environment", environment=seen | ({"threads": group.threads} if group else {}))
        if spec.distributed:
            # Here and not above: nobody else has a use for what it imports.
            from worker.distributed.rank import run_rank

            run_rank(spec, spec.distributed, devices, events)
            return
        data = None
        if spec.data and spec.model_file:
            # Here and not above: a synthetic job has no use for what it imports.
            from worker.data.loader import identified

            spec, data = identified(spec, spec.data)
        uses, ended = _train(spec, data, devices, events)
        for use, drawn in group.others(spec) if group else ():
            uses += [use] if use else []
            ended["drawn"].append(drawn)
    used = {**whole_usage(), **peak_memory(devices[0])}
    events.emit("done", usage=used, data_use=asdict(together(uses)) if uses else None, **ended)


def _train(spec: Spec, data: object, devices: list[Device], events: Events) -> tuple[list[LoaderUse], dict[str, Any]]:
    """Train on this instance. Returns what its loaders have read, and the other fields of ``done``."""
    settled = _settle(spec, devices, events)
    spec = _lasting(spec, settled)
    with ExitStack() as stack:
        checkpoints = stack.enter_context(checkpoint.opened(spec.checkpoint, spec))
        batches = stack.enter_context(opened_batches(spec, epoch=checkpoints.epochs if checkpoints else 0))
        injector = None
        if spec.injury:
            injector = Injector(spec.injury, spec.warmup_steps)
        trainer = build_trainer(spec, devices, injector.batches(batches) if injector else batches)
        if injector:
            injector.attach(trainer.network)
        if checkpoints:
            checkpoints.attach(cast(Single, trainer))  # only a job of one device has checkpoints
        if not settled:  # the training that settled the devices was built before
            events.emit("built")
        facts: dict[str, Any] = {}
        if spec.turns:
            take_turns(spec, spec.turns, trainer, events, sys.stdin)
        else:
            facts = measure(spec, trainer, events, checkpoints)
        taken = [loader.taken_sha256() for loader in batches]
        drawn = [drawn_sha256(taken, trainer.network, devices[0].torch)]
        # The loaders end here, so that what they have used is in the usage of the whole, and none computes any more.
        uses = [use for loader in batches if (use := loader.close())]
        described = {**facts, "data": data}
        trained = _use_trained(spec, trainer.network, events, described)
        injected = injector.injected if injector else None
        return uses, {
            "injected": injected,
            "settled": settled,
            "trained": trained,
            "drawn": drawn,
        }


def _use_trained(spec: Spec, network: torch.nn.Module, events: Events, facts: Mapping[str, Any]) -> object:
    """Write the trained network to its file, and generate images with it, where the job does. Returns its facts."""
    if spec.model_file:
        losses = facts.get("losses", {})
        last = {name: column[-1] for name, column in losses.items()}
        facts = {**facts, "losses": last, "peak_memory_bytes": whole_usage()["peak_memory_bytes"]}
        write_model(Path(spec.model_file), spec.shape, network, facts)
    if spec.generate:
        events.emit("generating")
        generator = Generator(spec.load_workload(), network, spec.shape)
        # As a served one: a compiled network would be compiled anew for each number of images, within what is timed.
        compiled = numerics_of(spec.recipe, spec.device).compiled
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            readings = generator.measured(spec.generate, spec.seed)
            events.emit("generated", **readings)
    return facts if spec.model_file else None


def _settle(spec: Spec, devices: list[Device], events: Events) -> dict[str, float] | None:
    """Emit ``built``, and train on drawn data until steps are level. Returns the steps, their time, and the last mean.

    The network and its data are forgotten, and the measured training is built anew from the seed: however long this
    takes on a target, all targets take the same steps afterwards. Raises JobError if the steps do not become level.
    """
    if not spec.settle_s:
        return None
    drawn = replace(spec, data=None, epochs=None, checkpoint=None)  # nothing is read, or kept in a page cache
    steps = 0
    means_s = list[float]()
    with opened_batches(drawn) as batches:
        trainer = build_trainer(drawn, devices, batches)
        scratch = Samples.allocate(1, trainer.phases, trainer.parts)
        events.emit("built")
        events.step = "the first step before the training"
        trainer.step(scratch, 0)  # a compiler may take minutes: that is no GPU that does not settle
        trainer.synchronize()
        begin_s = end_s = time.monotonic()
        while end_s - begin_s < spec.settle_s or not level(means_s):
            if end_s - begin_s > MOST_S:
                last_ms = ", ".join(f"{1e3 * mean_s:.3g}" for mean_s in means_s[-WINDOWS:])
                message = f"steps are not level after {MOST_S:g} s: the last took {last_ms} ms"
                raise JobError(message, kind="unsettled", remedy="see what else uses or throttles the GPU (nvidia-smi)")
            window_s = end_s
            for window in count(1):
                events.step = f"step {steps + window} before the training"
                trainer.step(scratch, 0)
                if time.monotonic() - window_s >= WINDOW_S:
                    break
            trainer.synchronize()  # as in the measured span: here only, unless each step waits for its end
            end_s = time.monotonic()
            steps += window
            means_s.append((end_s - window_s) / window)
    return {"steps": steps, "seconds": end_s - begin_s, "step_s": means_s[-1]}


def _lasting(spec: Spec, settled: Mapping[str, float] | None) -> Spec:
    """Return the job with as many steps as last long enough, if it may choose them."""
    if settled and spec.most_steps:
        steps = lasting_steps(spec, settled["step_s"], spec.most_steps)
        return replace(spec, steps=steps)
    return spec


def lasting_steps(spec: Spec, step_s: float, most: int) -> int:
    """Return the steps of a job that last ``least_s`` if each takes ``step_s``: its own, or as many more as it takes.

    More are rounded up, so that most runs on one machine take the same number. Raises JobError for over ``most``.
    """
    wanted = MARGIN * (spec.least_s or 0) / step_s
    if wanted <= spec.steps:
        return spec.steps
    magnitude = math.pow(10, math.floor(math.log10(wanted)))
    rounded = (math.ceil(leading * magnitude) for leading in ROUND)
    steps = next(number for number in rounded if number >= wanted)
    if steps > most:
        message = f"a step takes {1e3 * step_s:.3g} ms: {steps} would last {spec.least_s:g} s, and {most} are the most"
        raise JobError(message, kind="short", remedy="give a larger --batch")
    return steps


def level(means_s: list[float]) -> bool:
    last = means_s[-WINDOWS:]
    return len(last) == WINDOWS and max(last) <= (1 + LEVEL) * min(last)
