"""Forecasts of trials that never ran here, held against what trials took."""

from types import SimpleNamespace
from typing import Any

import pytest

from suite.job.job import Alternating, Devices
from suite.job.profiles import PROFILES
from suite.job.serving import Serving
from suite.plan import Trial
from suite.records.headers import RecordHeader, headers
from suite.records.record import Timeline
from suite.registries import WORKLOADS
from suite.sweep.estimate import (
    MOST_BURST_STEPS,
    ROUGH_OPENED_S,
    ROUGH_WITHIN,
    Durations,
    is_emulated,
    rough_s,
    with_lasting_bursts,
)
from tests.reference import REPOSITORY
from tests.suite.conftest import make_plan, make_record

STEPS_S = {
    ("inception_v3", "smoke"): 0.95,
    ("inception_v3", "quick"): 1.53,
    ("inception_v3", "paper"): 28.0,
    ("resnet50", "smoke"): 0.87,
    ("resnet50", "quick"): 2.13,
    ("resnet50", "paper"): 26.1,
    ("alexnet", "smoke"): 1.00,
    ("alexnet", "quick"): 1.06,
    ("alexnet", "paper"): 56.2,
    ("gan", "smoke"): 0.044,
    ("gan", "quick"): 0.43,
    ("gan", "paper"): 0.43,
    ("gan-published", "smoke"): 0.19,
    ("gan-published", "quick"): 0.23,
    ("gan-published", "paper"): 0.23,
    ("dcgan", "smoke"): 0.89,
    ("dcgan", "quick"): 3.13,
    ("dcgan", "paper"): 8.57,
    ("dcgan-published", "smoke"): 0.039,
    ("dcgan-published", "quick"): 0.97,
    ("dcgan-published", "paper"): 0.97,
    ("progressive-gan", "smoke"): 3.28,
    ("progressive-gan", "quick"): 8.44,
    ("progressive-gan", "paper"): 16 * 8.98,
    ("transformer", "smoke"): 0.115,
    ("transformer", "quick"): 0.38,
    ("transformer", "paper"): 8.95,
    ("vae", "smoke"): 0.017,
    ("vae", "quick"): 0.063,
    ("vae", "paper"): 0.063,
}
"""The seconds of a step, the shortest of five, on two CPUs that other jobs used as well. That of a progressive GAN at
128 pixels is 16 times the mean of eleven steps of one image, which hold all sizes: a trial would take four hours."""


def trial_of(model: str, profile: str, **changes: Any) -> Trial:
    (trial,) = make_plan(targets=("bare-metal",), blocks=1).trials()
    envelope = trial.job.envelope.model_copy(update={"threads": 2, "cpus": (0, 1)})
    unit = WORKLOADS.get(model).unit
    sizes = PROFILES[profile].sizes_of(model)
    return trial.with_job(model=model, unit=unit, profile=profile, sizes=sizes, envelope=envelope, **changes)


def test_every_workload_and_profile_was_measured() -> None:
    trained = [name for name in WORKLOADS.own if not WORKLOADS.get(name).communicates]
    every = {(name, profile) for name in trained for profile in ("smoke", "quick", "paper")}
    assert every == set(STEPS_S)


@pytest.mark.parametrize(("model", "profile"), STEPS_S)
def test_a_rough_forecast_is_right_within_the_factor_that_is_printed(model: str, profile: str) -> None:
    trial = trial_of(model, profile)
    sizes: Any = trial.job.sizes
    took_s = ROUGH_OPENED_S["bare-metal"] + (sizes.steps + sizes.warmup_steps) * STEPS_S[model, profile]
    assert took_s / ROUGH_WITHIN < rough_s(trial) < took_s * ROUGH_WITHIN


def records() -> list[RecordHeader]:
    runs = sorted((REPOSITORY / "tests/samples/runs").glob("*/trials"))
    found = [header for run in runs for header in headers(run.parent)]
    return [one for one in found if one.ok and one.job.sizes and not one.job.turns and not one.aggressor]


def test_the_forecast_of_every_stored_training_is_right_within_the_factor() -> None:
    ratios = {}
    for header in records():
        trial: Any = SimpleNamespace(target=header.target, job=header.job, instances=range(header.instances or 1))
        ratios[header.trial_id, header.job.model, is_emulated(trial)] = rough_s(trial) / header.duration_s
    assert len(ratios) > 50
    assert {name: ratio for name, ratio in ratios.items() if not 1 / ROUGH_WITHIN < ratio < ROUGH_WITHIN} == {}


def test_a_rate_is_carried_to_workloads_of_the_same_unit_only() -> None:
    durations = Durations()
    sizes = PROFILES["quick"].sizes_of("transformer")
    measured = {"model": "transformer", "unit": "tokens", "sizes": sizes, "target": "bare-metal"}
    record = make_record(elapsed_s=30.0, timeline=Timeline(measured_s=20.0), **measured)
    durations.add(RecordHeader.of(record.model_dump_json().encode()))
    assert durations.guess(trial_of("resnet50", "paper")).source == "rough"
    assert durations.guess(trial_of("transformer", "paper")).source == "similar"
    on_gpu = Devices(device="cuda")
    assert durations.guess(trial_of("transformer", "paper", devices=on_gpu)).source == "rough", "another device"


def test_a_gpu_is_forecast_by_its_own_speed_and_with_what_settles_it() -> None:
    cuda = Devices(device="cuda")
    trial = trial_of("resnet50", "gpu", devices=cuda)
    wide = trial.job.envelope.model_copy(update={"threads": 64})
    assert rough_s(trial) == rough_s(trial.with_job(envelope=wide)), "its threads compute nothing"
    opened_s = ROUGH_OPENED_S["bare-metal"]
    # 1,010 steps of 778 GFLOP at 10 TFLOP/s, after 5 s and more of settling.
    assert rough_s(trial) == pytest.approx(opened_s + 5 + 3 + 1010 * 0.078, rel=0.05)
    assert rough_s(trial_of("gan", "gpu", devices=cuda)) == opened_s + 5 + 3 + 20, "the least time of its steps"


def test_the_steps_that_a_first_trial_has_fixed_are_in_the_forecast_of_the_next_run() -> None:
    cuda = Devices(device="cuda")
    planned = trial_of("gan", "gpu", devices=cuda)
    sizes: Any = planned.job.sizes
    given = {"model": "gan", "profile": "gpu", "sizes": sizes.fixed(7000), "devices": cuda.devices}
    record = make_record(target="bare-metal", elapsed_s=40.0, timeline=Timeline(measured_s=21.0), **given)
    record = record.model_copy(update={"job": record.job.model_copy(update={"devices": cuda})})
    durations = Durations()
    durations.add(RecordHeader.of(record.model_dump_json().encode()))
    guess = durations.guess(planned)
    assert guess.source == "similar"
    assert guess.seconds == pytest.approx(40.0, abs=1.5)


def test_the_schedule_of_a_load_is_in_the_forecast_whatever_rates_were_asked_before() -> None:
    fast, slow = (Serving(requests=100, rates=rates, clients=2) for rates in ((100.0,), (1.0, 2.0)))
    given = {"scenario": "serve", "model": "python", "sizes": None}
    planned = trial_of("gan", "smoke").with_job(serving=slow, **given)
    assert rough_s(planned) == rough_s(planned.with_job(serving=fast)) - 1 + 150
    record = make_record(target="bare-metal", elapsed_s=20.0, timeline=Timeline(measured_s=5.0), **given)
    record = record.model_copy(update={"job": record.job.model_copy(update={"serving": fast})})
    header = RecordHeader.of(record.model_dump_json().encode())
    durations = Durations()
    durations.add(header)
    guess = durations.guess(planned)
    assert guess.source == "similar"
    assert guess.seconds == pytest.approx(header.duration_s - 1 + 150)


def test_a_workload_of_a_package_that_is_gone_ends_no_forecast() -> None:
    assert rough_s(trial_of("gan", "smoke").with_job(model="of-another-package")) > 0


@pytest.mark.parametrize(
    ("model", "burst_steps"),
    [("resnet50", 2), ("alexnet", 2), ("gan", 3), ("vae", 13), ("collectives", MOST_BURST_STEPS)],
)
def test_bursts_of_short_steps_last_so_that_their_noise_averages_out(model: str, burst_steps: int) -> None:
    trial = trial_of(model, "quick", turns=Alternating(rounds=8, burst_steps=2))

    lasting = with_lasting_bursts(trial.job)

    assert lasting.turns == Alternating(rounds=8, burst_steps=burst_steps)
    assert lasting.sizes is not None
    assert lasting.sizes.steps == 8 * burst_steps
    assert with_lasting_bursts(lasting) == lasting


def test_longer_bursts_than_the_least_stay_as_they_are() -> None:
    trial = trial_of("vae", "quick", turns=Alternating(rounds=8, burst_steps=100))

    lasting = with_lasting_bursts(trial.job)

    assert lasting.turns == trial.job.turns
