"""The measured steps of a training that takes turns: a burst of them in each."""

import gc
from typing import TextIO

from worker.protocol import Events
from worker.spec import Spec, Turns
from worker.training.measure import OwnMetrics, finite_losses, warm_up
from worker.training.trainer import Trainer
from worker.turns import each_turn
from worker.weights import weights_sha256


def take_turns(spec: Spec, turns: Turns, trainer: Trainer, events: Events, orders: TextIO) -> None:
    """Warm up, wait, take a burst of steps on each order, and emit everything from ``warmup`` to ``steps``.

    Raises JobError, above all where the orders end early.
    """
    own = OwnMetrics(spec.load_workload(), trainer)
    samples = warm_up(spec, trainer, events)

    def burst(number: int) -> slice:
        return slice(number * turns.burst_steps, (number + 1) * turns.burst_steps)

    def take(number: int) -> None:
        for index in range(burst(number).start, burst(number).stop):
            trainer.step(samples, index)
            if own.per_step:
                own.after_step()

    def told(number: int) -> dict[str, object]:
        return {"steps": samples.columns(burst(number))}

    used = each_turn(turns.rounds, orders, events, take, told)
    gc.enable()
    events.emit("measured")
    losses, weights = finite_losses(samples), weights_sha256(trainer.network)
    events.emit("steps", losses=losses, weights_sha256=weights, usage=used, metrics=own.columns(samples))
