"""What a job costs: hand-computed rows, properties, the decision, and the refusals of prices."""

import json
import math
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.compare.by import compare_by
from analysis.compare.results import Comparison
from analysis.costs.job import ExpectedCourse, best_interval, course_of, parse_amount, with_job
from analysis.costs.prices import Owned, PricedPlace, Prices, read_prices
from analysis.report.costs import decisions, places_by_arm
from suite.job.datasets import Dataset
from suite.job.preemption import Preemption
from suite.job.profiles import Sizes
from suite.records.record import Checkpoints, Epochs
from suite.records.usage import Conditions, Resources
from tests.analysis.conftest import Save, bench_compare, measured
from tests.analysis.test_by import on

REPOSITORY = Path(__file__).parents[2]
ABOUT: dict[str, Any] = {"source": "a list", "date": date(2026, 11, 1), "currency": "EUR"}
CELLAR = Owned(purchase=3504, life_years=4, yearly=876, watts=500, pue=2, per_kwh=0.1, use=0.5)
"""An hour of its life costs 0.2, a used one 0.4 and 0.1 of electricity."""


def place(**prices: Any) -> PricedPlace:
    return PricedPlace(**{**ABOUT, "match": {"host": "a"}, **prices})


def priced(save: Save, job: str, *places: PricedPlace) -> Any:
    records = save.load("r")
    prices = Prices(save.path / "prices.toml", places) if places else None
    return with_job(records, parse_amount(job), prices).trials.iloc[0]


@pytest.mark.parametrize(
    ("prices", "seconds", "money"),
    [
        ({"per_hour": 3.6}, 100.2, 0.101),  # begun seconds are whole
        ({"per_hour": 3.6}, 100.0, 0.1),
        ({"per_hour": 3.6, "minimum_s": 600}, 100.0, 0.6),
        ({"per_hour": 3.6, "minimum_s": 600}, 601.5, 0.602),
        ({"per_hour": 2.0, "step_s": 3600}, 3600.0, 2.0),
        ({"per_hour": 2.0, "step_s": 3600}, 3601.0, 4.0),
        ({"owned": CELLAR}, 7200.0, 1.0),
        ({"owned": CELLAR.model_copy(update={"use": 1.0})}, 7200.0, 0.6),
    ],
)
def test_a_time_is_billed_by_minimum_and_step_or_as_a_share_of_an_owned_machine(
    prices: dict[str, Any], seconds: float, money: float
) -> None:
    assert place(**prices).bill("money", np.array([seconds])) == pytest.approx([money])


def test_spot_and_reserved_have_prices_of_their_own_and_an_owned_machine_one_for_all() -> None:
    rented, owned, hour = place(per_hour=3.6, spot_per_hour=1.8), place(owned=CELLAR), np.array([3600.0])
    assert [rented.bill(name, hour) for name in ("money", "money-spot", "money-reserved")] == [3.6, 1.8, None]
    assert [owned.bill(name, hour) for name in ("money", "money-spot")] == [0.5, 0.5]


def test_the_break_even_use_is_that_at_which_both_cost_the_same() -> None:
    use, same, never = CELLAR.uses([1.2, 1.0, 0.2])
    assert use == pytest.approx(0.4), "0.6 for an hour, 0.1 of which is electricity: 0.2 / 0.5"
    assert same == pytest.approx(CELLAR.use)
    assert never == math.inf, "electricity alone costs that much"


def test_a_job_is_opened_and_started_once_and_then_runs_at_the_steady_rate(save: Save) -> None:
    # Start-up is the timeline's 9.4 s of imports, the opening takes 0.5 s; ten images take a second.
    save("r", **on("a"), **measured(10))
    row = priced(save, "1e4 images", place(per_hour=3.6))
    assert row["job_time"] == pytest.approx(0.5 + 9.4 + 1000)
    assert row["job_money"] == pytest.approx(1.010)


def test_epochs_are_whole_batches_and_each_has_its_checkpoint(save: Save) -> None:
    dataset = Dataset(kind="mnist", digest="contents", sha256="b" * 64, listing_sha256="b" * 64, images=7, size_bytes=9)
    epochs = Epochs(steps=3, seconds=[0.6, 0.6], checkpoints=Checkpoints(seconds=[0.1, 0.3], size_bytes=1))
    sizes = Sizes(batch=2, image_px=28, warmup_steps=0, steps=6, epochs=2)
    work = {"scenario": "real", "data": "mnist", "dataset": dataset, "page_cache": "warm", "sizes": sizes}
    steps = measured(10) | {"elapsed_s": 20.0}
    save("r", **on("a"), **work, **steps, epochs=epochs, checkpoint="on")
    assert priced(save, "50 epochs")["job_time"] == pytest.approx(0.5 + (20 - 0.6) + 50 * 6 / 10 + 50 * 0.2)


def test_energy_is_the_mean_power_of_the_trial_over_the_job_and_carbon_follows_the_intensity(save: Save) -> None:
    spent = Resources(energy_j={"package-0": 900.0, "dram-0": 100.0}, idle_w=40.0)
    save("r", **on("a"), **measured(10), resources=spent, conditions=Conditions(interval_s=10))
    row = priced(save, "1e4 images", place(per_hour=1.0, g_per_kwh=360))
    assert row["job_energy_units"] == pytest.approx(100 * 100), "1,000 images take 100 s at 100 W"
    assert row["job_energy_net"] == pytest.approx(60 * 100), "40 W were drawn before the first block"
    assert row["job_energy"] == pytest.approx(100 * row["job_time"])
    assert row["job_carbon"] == pytest.approx(row["job_energy"] / 1e4)


def two_hosts(save: Save, slower: float, seed: int = 1, blocks: int = 6, **job: Any) -> None:
    rng = np.random.default_rng(seed)
    for host, speed in (("cellar", 10.0), ("cloud", 10.0 / slower)):
        for block in range(blocks):
            save(host, block=block, **on(host), **measured(speed * math.exp(0.004 * rng.normal())), **job)


def compared(save: Save, *places: PricedPlace) -> tuple[Comparison, list[str]]:
    records, amount = save.load("cellar", "cloud"), parse_amount("1e5 images")
    prices = Prices(save.path / "prices.toml", places)
    comparison = compare_by(with_job(records, amount, prices), ("host",))
    return comparison, [*decisions(comparison, amount, places_by_arm(records.trials, ("host",), prices))]


def rented(host: str, per_hour: float, **more: Any) -> PricedPlace:
    return place(match={"host": host}, per_hour=per_hour, **more)


def test_the_decision_is_longer_and_cheaper_with_intervals_and_the_use_from_which_the_owned_one_is(save: Save) -> None:
    two_hosts(save, 1.12)
    cellar = place(match={"host": "cellar"}, owned=CELLAR)
    _, (first, spot) = compared(save, cellar, rented("cloud", 0.31, spot_per_hour=0.1))
    assert first.startswith("cloud takes 12 % (1")
    assert "longer and costs 3" in first
    assert ") less per 100,000 images than cellar, which is cheaper above 8" in first
    assert "% to " in first.partition("cheaper above")[2]
    assert spot.startswith("At the price of spot, cloud costs 7")
    # The rented one does the work of an owned hour, of 0.5, in 1.12 hours: 0.31 x 1.12 = 0.347, and 0.2 / 0.247 = 0.81.


def test_the_same_place_twice_claims_no_difference(save: Save) -> None:
    two_hosts(save, 1.0)
    _, (sentence,) = compared(save, rented("cellar", 1.0), rented("cloud", 1.0))
    assert "takes as much time (within 2 %) and costs as much money (within 2 %) per 100,000 images" in sentence
    assert "than" not in sentence


def test_too_few_blocks_claim_nothing_and_name_the_reason(save: Save) -> None:
    two_hosts(save, 1.3, blocks=3)
    _, (sentence, why) = compared(save, rented("cellar", 1.0), rented("cloud", 1.0))
    assert "has no verdict on time (2" in sentence
    assert "blocks are needed" not in sentence
    assert why == "No verdict: at least 5 blocks are needed."


@pytest.mark.parametrize(("blocks", "profile"), [(2, "quick"), (6, "smoke"), (2, "smoke")])
def test_no_break_even_use_is_named_where_money_has_no_verdict(save: Save, blocks: int, profile: str) -> None:
    two_hosts(save, 1.3, blocks=blocks, profile=profile)
    sentences = compared(save, place(match={"host": "cellar"}, owned=CELLAR), rented("cloud", 0.31))[1]
    assert "has no verdict on money" in sentences[0]
    assert not [text for text in sentences if re.search(r"cheaper|dearer|more|less|than", text)], sentences


def test_other_prices_leave_the_times_as_they_are(save: Save) -> None:
    two_hosts(save, 1.12)
    found = [compared(save, rented("cellar", price), rented("cloud", 2 * price))[0] for price in (1.0, 7.0)]
    first, second = ([row for row in one.contrasts if row.metric.name != "money"] for one in found)
    assert first == second


def test_targets_of_one_place_are_compared_in_money_too(tmp_path: Path, save: Save) -> None:
    for block in range(6):
        for target, speed in (("bare-metal", 10.0), ("container", 8.0)):
            save("r", block=block, target=target, **on("a"), **measured(speed + 0.01 * block))
    (tmp_path / "prices.toml").write_text(FILE.format(more="per_hour = 1"))
    words = (tmp_path / "r", "--job", "1e5 images", "--prices", tmp_path / "prices.toml", "--force")
    shown = bench_compare(*words, "--json")
    answer = json.loads(shown.stdout)["answer"]
    assert answer[0].startswith("container takes 25 % (25 % to 25 %) longer and costs 25 %"), shown.output
    plots = tmp_path / "plots"
    text = " ".join(bench_compare(*words, "--plots", plots).stdout.split())
    assert text.startswith("container takes 25 %")
    step = f"bench compare {tmp_path / 'r'} --explain"
    assert json.loads(shown.stdout)["next"]["command"] == step
    assert f"{step} # where the time goes" in text
    assert "host=a: 1.00 EUR per hour, at least 0 s in steps of 1 s (a list, 2026-11-01)" in text
    assert "energy: no trial has a counter of it" in text
    assert {path.name for path in plots.iterdir()} >= {"synthetic-time-money.png"}


def course(work: float, start: float, checkpoint: float, interval: float | None = None, **by: float) -> ExpectedCourse:
    work_s, start_s, checkpoint_s = (np.array([part]) for part in (work, start, checkpoint))
    interval_s = None if interval is None else np.array([interval])
    return course_of(work_s, start_s, checkpoint_s, Preemption(**by), interval_s)


def test_the_best_interval_is_that_of_young_and_daly_and_no_other_is_shorter() -> None:
    (best,) = best_interval(np.array([10.0]), 3600)
    assert best == pytest.approx(math.sqrt(2 * 10 * 3600) * (1 + math.sqrt(1 / 720) / 3 + 1 / 720 / 9) - 10)
    around = [course(360_000, 60, 10, best * factor, mean_s=3600).makespan_s[0] for factor in (0.7, 1.0, 1.4)]
    assert min(around) == around[1] == pytest.approx(course(360_000, 60, 10, mean_s=3600).makespan_s[0])


def test_a_makespan_is_that_of_the_formula_in_whole_intervals() -> None:
    found = course(1000, 20, 2, 97, mean_s=500)
    segments = 10 * 500 * math.exp(20 / 500) * math.expm1(102 / 500)
    assert found.interval_s[0] == 100
    assert found.makespan_s[0] == pytest.approx(500 * math.expm1(20 / 500) + segments)
    assert found.openings[0] == pytest.approx(1 + found.makespan_s[0] / 500)
    assert found.undisturbed_s[0] == 20 + 1000 + 10 * 2


@pytest.mark.parametrize("interval", [None, 100.0])
@pytest.mark.parametrize(("checkpoint", "notice"), [(2, 0), (2, 1), (2, 30), (0, 0)])
def test_a_job_that_is_never_preempted_takes_its_undisturbed_time(
    interval: float | None, checkpoint: float, notice: float
) -> None:
    rare = course(1000, 20, checkpoint, interval, mean_s=1e9, notice_s=notice)
    assert rare.makespan_s[0] == pytest.approx(rare.undisturbed_s[0], rel=1e-4)
    assert (rare.openings[0], rare.lost_s[0]) == pytest.approx((1, 0), abs=1e-3)


@pytest.mark.parametrize("mean", [5.0, 60.0, 3600.0, 1e6, 1e9])
@pytest.mark.parametrize("notice", [0.0, 1.0, 30.0])
def test_no_preempted_job_is_faster_than_the_undisturbed_one(mean: float, notice: float) -> None:
    for work in (1.0, 50.0, 1000.0):
        for checkpoint in (0.0, 0.5, 40.0):
            found = course(work, 20, checkpoint, mean_s=mean, notice_s=notice)
            assert found.makespan_s[0] >= found.undisturbed_s[0] * (1 - 1e-6)


def test_a_notice_that_is_long_enough_for_a_checkpoint_loses_no_work_but_the_time_that_it_lasts() -> None:
    found, late = course(1000, 20, 5, mean_s=500, notice_s=30), course(1000, 20, 50, mean_s=500, notice_s=30)
    # Three lives on average in which it works, and those that end before the start and the notice are over.
    assert found.openings[0] == pytest.approx(3 * math.exp(50 / 500))
    assert found.makespan_s[0] == pytest.approx(3 * 500 * math.expm1(50 / 500) + 1000 - 30)
    assert found.lost_s[0] == 0
    assert late.lost_s[0] > 0, "it is too short"


def test_preemption_makes_spot_dearer_and_without_a_checkpoint_names_the_run_that_measures_one(
    tmp_path: Path, save: Save
) -> None:
    (tmp_path / "prices.toml").write_text(FILE.format(more="per_hour = 1\nspot_per_hour = 0.3"))
    sizes = Sizes(batch=2, image_px=32, warmup_steps=1, steps=3)
    epochs = Epochs(steps=3, seconds=[0.6], checkpoints=Checkpoints(seconds=[0.01], size_bytes=1))
    for block in range(3):
        steps = on("a") | measured(10 + 0.01 * block)
        save("without", block=block, **steps)
        save("with", block=block, **steps, sizes=sizes, epochs=epochs, checkpoint="on")
    words = ("--job", "1e5 images", "--prices", tmp_path / "prices.toml", "--force")
    shares = []
    for more in ((), ("--preempt", "mean=5m")):
        rows = json.loads(bench_compare(tmp_path / "with", *words, *more, "--json").stdout)["rows"]
        shares += [row["value"] for row in rows if row["metric"] == "spot-to-on-demand"]
    assert shares[0] == pytest.approx(0.3)
    assert 0.3 < shares[1] < 0.33
    shown = bench_compare(tmp_path / "without", *words, "--preempt", "mean=1h", "--markdown").stdout
    advice = "no trial wrote a checkpoint; to measure one, add --checkpoint on --checkpoint-every 10"
    assert advice in " ".join(shown.split())


@pytest.mark.parametrize("more", [{}, {"notice": "10s"}])
def test_one_job_with_the_checkpoints_of_one_interval_is_on_both_sides_of_every_ratio(
    tmp_path: Path, save: Save, more: dict[str, str]
) -> None:
    (tmp_path / "prices.toml").write_text(FILE.format(more="per_hour = 1\nspot_per_hour = 0.319"))
    # Checkpoints of a tenth of the work, far more than a rare preemption asks for.
    epochs = Epochs(steps=3, seconds=[0.6], checkpoints=Checkpoints(seconds=[0.06], size_bytes=1))
    for block in range(3):
        save("r", block=block, **on("a"), **measured(10 + 0.01 * block), epochs=epochs, checkpoint="on")
    words = (tmp_path / "r", "--job", "1e3 images", "--prices", tmp_path / "prices.toml", "--force")
    by = ",".join(f"{name}={value}" for name, value in {"mean": "1000h", **more}.items())
    shown = json.loads(bench_compare(*words, "--preempt", by, "--json").stdout)["rows"]
    values = {row["metric"]: row["value"] for row in shown}
    assert values["job-makespan"] == pytest.approx(values["job-time"], rel=1e-3)
    assert values["spot-to-on-demand"] == pytest.approx(0.319, rel=1e-2)
    assert values["spot-to-on-demand"] >= 0.319 * (1 - 1e-9)
    text = " ".join(bench_compare(*words, "--preempt", by, "--markdown").stdout.split())
    named = "checkpoints at a notice alone" if more else "checkpoints after every checkpoint-spacing of work"
    assert f"{named}, as in job-makespan" in text


@pytest.mark.parametrize(("mean", "verdict"), [("1m", "contradicted"), ("50h", "confirmed")])
def test_the_claim_that_spot_costs_no_efficiency_is_judged_with_the_stated_mean(
    tmp_path: Path, save: Save, mean: str, verdict: str
) -> None:
    epochs = Epochs(steps=3, seconds=[0.6], checkpoints=Checkpoints(seconds=[0.001], size_bytes=1))
    for block in range(6):
        save("r", block=block, **on("a"), **measured(10 + 0.01 * block), epochs=epochs, checkpoint="on")
    words = ("--job", "1e5 images", "--preempt", f"mean={mean}", "--claims", "--force")
    text = bench_compare(tmp_path / "r", *words, "--markdown").stdout
    assert f"Published claims: 1 {verdict}" in text, text
    assert "job-makespan" in text.partition("Published claims")[2]


FILE = """[[place]]
match = {{ host = "a" }}
currency = "EUR"
source = "a list"
date = 2026-11-01
{more}
"""
CATALOGUE = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone
n2-standard-8,,,8,32,0.39,0.09,europe-west4,europe-west4-a
n2-standard-8,,,8,32,0.39,0.09,europe-west4,europe-west4-b
n2-standard-8,,,8,32,0.41,0.11,us-east1,us-east1-b
n2-standard-8,,,8,32,0.41,0.12,us-east1,us-east1-c
"""
LISTED = 'catalogue = {{ file = "vms.csv", instance = "{}", region = "{}"{} }}'


def refused() -> Iterator[tuple[str, str]]:
    def listed(*words: str) -> str:
        return FILE.format(more=LISTED.format(*words))

    whole = FILE.format(more="per_hour = 1")
    second = whole.replace('"a"', '"b"').replace("EUR", "USD")
    yield whole + second, "place.1.currency: USD, and place.0 is in EUR"
    yield whole.replace("date =", "# date ="), "place.0.date: Field required"
    yield whole.replace('"a list"', '""'), "place.0.source"
    yield FILE.format(more="per_hour = -1"), "place.0.per_hour"
    yield FILE.format(more="per_hour = inf"), "place.0.per_hour"
    yield FILE.format(more="per_hour = nan"), "place.0.per_hour"
    yield FILE.format(more=""), "place.0: Value error, give one of per_hour, owned, catalogue"
    yield FILE.format(more="per_hour = 1\n" + LISTED.format("x", "y", "")), "give one of"
    yield FILE.format(more="per_hour = 1\nper_day = 2"), "place.0.per_day"
    yield (
        FILE.format(more="owned = { purchase = 1, life_years = 1, watts = 1, per_kwh = 1, use = 0 }"),
        "place.0.owned.use",
    )
    yield "", "place: Field required"
    yield "[[place", "is not TOML"
    yield listed("n2-standart-8", "europe-west4", ""), "place.0.catalogue.instance"
    yield listed("n2-standard-8", "mars", ""), "place.0.catalogue.region"
    yield listed("n2-standard-8", "us-east1", ""), "place.0.catalogue.zone"
    yield listed("n2-standard-8", "us-east1", "").replace("vms", "none"), "place.0.catalogue.file"
    yield whole.replace('host = "a"', 'host = "z"'), "place.0.match.host: no record matches host=z"
    yield whole.replace('host = "a"', 'hosts = "a"'), "place.0.match.hosts: no record has this key"
    yield whole + whole, "place.1.match: records of host=a match host=a, too"


@pytest.mark.parametrize(("content", "expected"), [*refused()])
def test_prices_that_mean_nothing_are_refused_with_file_and_key(
    tmp_path: Path, save: Save, content: str, expected: str
) -> None:
    save("r", **on("a"), **measured(10))
    (tmp_path / "vms.csv").write_text(CATALOGUE)
    (tmp_path / "prices.toml").write_text(content)
    shown = bench_compare(tmp_path / "r", "--job", "1e5 images", "--prices", tmp_path / "prices.toml")
    assert shown.exit_code == 2, shown.output
    text = "".join(shown.output.split())
    assert "".join(expected.split()) in text
    assert "prices.toml" in text


def test_a_catalogue_gives_the_prices_of_an_instance_in_a_region(tmp_path: Path) -> None:
    (tmp_path / "vms.csv").write_text(CATALOGUE)
    zone = ', zone = "us-east1-c"'
    for region, named, price in (("europe-west4", "", (0.39, 0.09)), ("us-east1", zone, (0.41, 0.12))):
        (tmp_path / "prices.toml").write_text(FILE.format(more=LISTED.format("n2-standard-8", region, named)))
        (found,) = read_prices(tmp_path / "prices.toml").places
        assert (found.per_hour, found.spot_per_hour) == price


def test_the_example_of_the_guide_is_a_file_of_prices() -> None:
    prices = read_prices(REPOSITORY / "docs/guide/prices.toml")
    assert [one.name for one in prices.places] == ["host=cellar", "host=cloud"]
    assert prices.offered == ["money", "money-spot", "money-reserved"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--job", "many images"], "is not an amount of work"),
        (["--job", "0 images"], "is not an amount of work"),
        (["--job", "-1 epochs"], "is not an amount of work"),
        (["--job", "1e9 tokens"], "give --job in images"),
        (["--job", "50 epochs"], "no record gives the time of 50 epochs"),
        (["--prices", "x.toml"], "--prices needs --job"),
        (["--preempt", "mean=1h"], "--preempt needs --job"),
        (["--job", "1 images", "--preempt", "1h"], "write it as mean=1h or mean=1h,notice=30s"),
        (["--job", "1 images", "--preempt", "mean=1"], "'1' has no unit"),
        (["--job", "1 images", "--costs"], "--costs has no effect with --job"),
        (["--job", "1 images", "--by", "rate"], "--job does not go with --by rate"),
    ],
)
def test_a_job_that_no_record_gives_is_refused(tmp_path: Path, save: Save, words: list[str], expected: str) -> None:
    save("r", **on("a"), **measured(10))
    shown = bench_compare(tmp_path / "r", *words)
    assert shown.exit_code == 2
    assert expected in " ".join(shown.output.split())


def test_an_amount_is_shown_as_it_was_meant() -> None:
    told = {
        "50 epochs": "50 epochs",
        "1e6 images": "1,000,000 images",
        "1 M tokens": "1,000,000 tokens",
        "2.5M tokens": "2,500,000 tokens",
        "1 epoch": "1 epochs",
        "2.5 epochs": "2.50 epochs",
    }
    assert {text: str(parse_amount(text)) for text in told} == told
