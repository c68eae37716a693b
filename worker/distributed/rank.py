"""One rank of a distributed job: a parameter server, or a worker with the exchange of its strategy in each step."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel

from worker.data.batches import SEED_STRIDE, Batch, Batches, together
from worker.distributed import parameters
from worker.distributed.exchange import Exchange
from worker.distributed.group import RankGroup, joined
from worker.distributed.parameters import Parameters
from worker.distributed.rendezvous import interface_bytes
from worker.distributed.serve import serve
from worker.distributed.trainings import (
    GENERATOR,
    GRADIENT,
    UPDATE,
    AveragedTraining,
    JoinedTraining,
    OtherRank,
    SplitTraining,
    broadcast_weights,
)
from worker.environment import whole_usage
from worker.protocol import Events
from worker.spec import DISCRIMINATOR_RANK, SPLIT, Membership, Spec
from worker.training.build import build_network, opened_batches
from worker.training.device import Device, Numerics, numerics_of, timing_event
from worker.training.measure import measure, take_turns
from worker.training.parameter_cpu import ParameterCpu, Replicas
from worker.training.step import COMMUNICATE, Training
from worker.training.trainer import Messages, OneDevice, Single, set_learning_rate
from worker.weights import drawn_sha256
from worker.workloads.workload import LEARNING_RATE, Shape, Workload


def run_rank(spec: Spec, membership: Membership, devices: Sequence[Device], events: Events) -> None:
    """Emit everything from ``built`` to ``done``. Raises JobError, of kind ``network`` when another rank is lost."""
    # The error of a rank that the heartbeat must end, because gloo does not wake it.
    joining = partial(joined, membership, report=lambda error: events.error(error.kind, str(error)))
    workload = spec.load_workload()
    if membership.is_server:
        with joining("cpu") as workers:
            events.emit("built")
            served = serve(workers, learning_rate=spec.learning_rate or LEARNING_RATE, threads=spec.threads)
        events.emit("done", usage=whole_usage(), exchanged=served)
        return
    with ExitStack() as stack:
        # Each worker draws from a seed of its own the order of the data, noise and dropout: with one for all, more
        # workers would train with no more images. Its devices have the seeds up to that of the next worker. The
        # generator of a split GAN has its images from the other rank.
        trainer_number = membership.rank - membership.servers
        own_seed = spec.seed + SEED_STRIDE * spec.devices * trainer_number
        read = msgspec.structs.replace(spec, seed=own_seed, data=None if membership.generates else spec.data)
        batches = stack.enter_context(opened_batches(read))
        numerics = numerics_of(spec.recipe, spec.device, channels_last=spec.channels_last)
        network = build_network(workload, spec.shape, spec.seed)
        torch.manual_seed(own_seed)
        group = stack.enter_context(joining(spec.device))
        trainer: Worker | MessagesWorker | ReplicasWorker
        if spec.parallel == "none":
            trainer = trainer_of(group, workload, network, devices[0], batches[0], numerics, spec.shape)
        else:
            replicas = Replicas.place(network, devices, numerics)
            trainer = ReplicasWorker(workload, network, devices, batches, numerics, replicas, group)
        set_learning_rate(trainer, spec.learning_rate)
        events.emit("built")
        before = interface_bytes(membership.interface)
        if spec.turns:
            take_turns(spec, spec.turns, trainer, events, sys.stdin)
        else:
            measure(spec, trainer, events)
        after = interface_bytes(membership.interface)
        taken = [loader.taken_sha256() for loader in batches]
        drawn = [drawn_sha256(taken, network, devices[0].torch)]
        trainer.close()
        uses = [use for loader in batches if (use := loader.close())]
    data_use = asdict(together(uses)) if uses else None
    exchanged = trainer.exchanged() | {name: after[name] - before[name] for name in after if name in before}
    events.emit(
        "done",
        usage=whole_usage(),
        data_use=data_use,
        exchanged=exchanged,
        drawn=drawn,
    )


class Communicating:
    ends: Exchange | JoinedTraining | OtherRank | None = None
    """What counts its messages; None where no training sends them."""

    def exchanged(self) -> dict[str, int]:
        """Return ``bytes_sent`` and ``bytes_received`` since the beginning; nothing where no training sends them."""
        if self.ends:
            return self.ends.exchanged()
        return {}

    def close(self) -> None:
        """Tell the servers, if there are any, that this worker makes no more steps."""
        if isinstance(self.ends, Exchange):
            self.ends.close()


class Worker(Communicating, OneDevice):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.phases = (*self.phases, COMMUNICATE)


@dataclass(eq=False)
class ParameterServerWorker(Worker):
    """A step has ended when the updated parameters are there."""

    group: RankGroup

    def __post_init__(self) -> None:
        super().__post_init__()
        exchanged = Parameters(self.network)
        self.ends = self.exchange = Exchange(self.group, exchanged, parameters.CHUNK_BYTES)

    def train(self, batch: Batch) -> float:
        self.exchange.begin()
        self.passes(batch)
        self.exchange.finish()
        return self.exchange.busy_s


@dataclass(eq=False)
class ReplicasWorker(Communicating, ParameterCpu):
    """A worker with several devices: the servers get the mean of their gradients, and update in its place."""

    group: RankGroup

    def __post_init__(self) -> None:
        super().__post_init__()
        vector = Parameters(self.network)
        self.ends = self.exchange = Exchange(self.group, vector, parameters.CHUNK_BYTES)
        vector.keep_gradients()

    def update(self) -> float:
        self.exchange.begin()
        self.exchange.finish()
        return self.exchange.busy_s


@dataclass(eq=False)
class AllReduceWorker(Worker):
    """DistributedDataParallel. What is reduced while the backward pass still computes is not told from it.

    A rank's bytes are those of a ring over all ranks, which is what gloo does; they are reckoned and not counted.
    """

    world: int
    last: "LastGradient"
    spread: DistributedDataParallel
    """What spreads the network over the ranks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._optimizer = self.workload.optimizer(self.network)
        self._steps = 0
        trained = (parameter.nbytes for parameter in self.network.parameters() if parameter.requires_grad)
        gradient_bytes = sum(trained)
        self._step_bytes = 2 * (self.world - 1) * gradient_bytes // self.world

    @property
    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return (self._optimizer,)

    def exchanged(self) -> dict[str, int]:
        return dict.fromkeys(("bytes_sent", "bytes_received"), self._steps * self._step_bytes)

    def train(self, batch: Batch) -> float:
        self.passes(batch, self.spread)
        self.last.reduced()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.device.synchronize()
        self._steps += 1
        return self.last.exposed_s()


@dataclass(eq=False)
class OwnStepWorker(Worker, Single):
    """The workload's own step, in a training that ``join`` makes of the network's parts."""

    join: Callable[..., JoinedTraining]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.training: JoinedTraining = self.join(self.network, self.training.optimizers, self.device, self.numerics)
        self.ends = self.training

    def train(self, batch: Batch) -> float:
        communicate_s = super().train(batch)
        self.training.check_step(self.workload.name)
        return communicate_s


@dataclass(eq=False)
class GeneratorWorker(Worker):
    """The generator's part of a step, as the discriminator's rank orders it. The batch is not used."""

    training: Training
    peer: OtherRank

    @classmethod
    def open(
        cls,
        workload: Workload,
        network: torch.nn.Module,
        device: Device,
        batches: Batches,
        numerics: Numerics,
        shape: Shape,
    ) -> "GeneratorWorker":
        """Return the worker of a network whose discriminator is on the other rank."""
        optimizers = workload.checked_optimizers(network)
        delattr(network, "discriminator")
        training = Training(network, optimizers, device, numerics)
        peer = OtherRank(DISCRIMINATOR_RANK, shape, device, training.phase)
        return cls(workload, network, device, batches, numerics, training, peer)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ends = self.peer

    @property
    def optimizers(self) -> Iterable[torch.optim.Optimizer]:
        return self.training.optimizers.values()

    def train(self, batch: Batch) -> float:
        del batch
        generator = self.network.get_submodule(GENERATOR)
        images = torch.zeros(())
        while (order := self.peer.ordered())[0] != UPDATE:
            kind, count = order
            if kind == GRADIENT:
                gradients = self.peer.images(count).to(images.dtype)
                images.backward(gradients)  # type: ignore[no-untyped-call]
                continue
            with self.training.autocast():
                noise = self.workload.noise(count, self.device.torch)
                images = generator(noise)
            self.peer.send(images.detach())
        self.training.update(GENERATOR)
        self.device.synchronize()
        return self.training.phase.seconds().get(COMMUNICATE, 0.0)


class MessagesWorker(Communicating, Messages):
    """A worker that exchanges messages with the others, and trains nothing."""


class LastGradient:
    """Finds how long a step waits for the reduction after the backward pass has made its last gradient.

    Hooks of the parameters note the time of each gradient, and the last one stays. torch runs them before those of
    DistributedDataParallel. On CUDA the times are the device's, by events on the stream that computes, which at the end
    of the backward pass waits for the reduction.
    """

    def __init__(self, device: Device) -> None:
        self._made_s = self._reduced_s = 0.0
        self._events = (timing_event(), timing_event()) if device.is_cuda else None

    def watch(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._made)  # type: ignore[no-untyped-call]

    def reduced(self) -> None:
        """Note that the backward pass has returned, and all gradients with it."""
        self._reduced_s = time.monotonic()
        if self._events:
            self._events[1].record()

    def exposed_s(self) -> float:
        """Return the seconds from the last gradient to the end of the reduction. On CUDA, synchronise first."""
        if self._events:
            elapsed_ms = self._events[0].elapsed_time(self._events[1])
            return float(elapsed_ms) / 1e3
        return self._reduced_s - self._made_s

    def _made(self, _: torch.Tensor) -> None:
        self._made_s = time.monotonic()
        if self._events:
            self._events[0].record()


def trainer_of(
    group: RankGroup,
    workload: Workload,
    network: torch.nn.Module,
    device: Device,
    batches: Batches,
    numerics: Numerics,
    shape: Shape,
) -> Worker | MessagesWorker:
    """Return the trainer of a worker's rank on one device, by strategy and workload."""
    membership = group.membership
    placed = numerics.place(network, device)
    if workload.compiles:
        placed = numerics.compile(placed)
    parts = workload, placed, device, batches, numerics
    if membership.servers:
        return ParameterServerWorker(*parts, group)
    if workload.communicates:
        return MessagesWorker(*parts)
    if membership.generates:
        return GeneratorWorker.open(*parts, shape)
    if membership.strategy == SPLIT:
        return OwnStepWorker(*parts, partial(SplitTraining.open, shape=shape))
    if workload.one_loss:
        last = LastGradient(device)
        last.watch(placed.parameters())  # before the hooks of what spreads it
        spread = spread_over_ranks(placed, device)
        return AllReduceWorker(*parts, membership.world, last, spread)
    broadcast_weights(placed)
    return OwnStepWorker(*parts, partial(AveragedTraining, membership=membership))


def spread_over_ranks(network: torch.nn.Module, device: Device) -> DistributedDataParallel:
    """Give all ranks the weights of the first, and reduce the gradients of each backward pass over them."""
    # Statistics of batches stay with each worker, as they do with parameter servers and in tf_cnn_benchmarks.
    return DistributedDataParallel(
        network,
        device_ids=[device.torch] if device.is_cuda else None,
        gradient_as_bucket_view=True,
        forward_sync_buffers=False,
    )
