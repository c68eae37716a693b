"""What the targets of a block computed and generated: the same, near each other where rounding may differ, or other."""

import io
from base64 import b64encode
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from analysis.compare.results import Comparison, SameImage, SameWork
from analysis.load.computed import TOLERANCE, Computed, agreement, computed
from analysis.report.answers.answer import answer
from analysis.report.document import document
from analysis.report.rows import as_json
from suite.job.job import Devices, Job
from suite.records.environment import Environment, Environments
from suite.records.record import Generated, Grid, MetricValue, Steps
from tests.analysis.conftest import Save, as_markdown, json_of, known, printed

DIGEST, OTHER_DIGEST = "ab" * 32, "cd" * 32
LOSSES = {"loss": [7.0, 6.5, 6.25]}
Fields = dict[str, Any]


def work(
    losses: dict[str, list[float]] | None = None, weights: str | None = DIGEST, drawn: str | None = None, **inside: Any
) -> Fields:
    """Return fields of a record that computed this, in a target that has these facts."""
    columns: Fields = {"elapsed_s": [0.2] * 3, "data_s": [0.0] * 3, "compute_s": [0.2] * 3}
    steps = Steps(**columns, losses=LOSSES if losses is None else losses)
    place = Environment(userland_sha256="a" * 64, torch_cpu_capability="AVX2", cpu_model="a CPU")
    environment = Environments(host=place, target=replace(place, **inside))
    return {"steps": steps, "weights_sha256": weights, "drawn_sha256": drawn, "environment": environment}


def saved(save: Save, base: Fields, *, model: str = "resnet50", **arms: Any) -> None:
    """Save two blocks of bare metal and of these arms."""
    for block in range(2):
        save(block=block, seed=block, model=model, **base)
        for target, fields in arms.items():
            save(block=block, seed=block, model=model, **{"target": target} | fields)


def compared(save: Save, base: Fields, **arms: Any) -> Comparison:
    saved(save, base, **arms)
    return save.compare()


def by_model(comparison: Comparison) -> dict[str, Comparison]:
    """Return what was found of each model, as if it had been compared alone."""
    return {
        group.model: replace(
            comparison,
            groups=(group,),
            contrasts=group.contrasts,
            warnings=tuple(one for one in comparison.warnings if group.model in {of.model for of in one.touches}),
        )
        for group in comparison.groups
    }


def of_arms(comparison: Comparison) -> dict[str, SameWork]:
    return {one.arm: one for group in comparison.groups for one in group.same_work}


def said(comparison: Comparison) -> str:
    """Return what the answer says of the work."""
    return answer(comparison).facts[-1]


def ratio_of(comparison: Comparison, target: str) -> float | None:
    (found,) = (measured for arm, measured in comparison.of_kind("target").items() if arm.target == target)
    return found["throughput"].ratio


def image_of(comparison: Comparison, arm: str) -> SameImage:
    return known(of_arms(comparison)[arm].image)


def scaled(times: float) -> dict[str, list[float]]:
    return {name: [loss * times for loss in column] for name, column in LOSSES.items()}


@pytest.mark.parametrize(
    ("base", "vm", "proof"),
    [
        (work(), work(accelerator="kvm"), "computed the same weights, bit for bit"),
        (work(weights=None), work(weights=None), "computed the same losses, bit for bit"),
        (work(), work(weights="cd" * 32, accelerator="kvm"), "computed the same losses (other accelerator)"),
        (work({}, None, DIGEST), work({}, None, DIGEST), "drew the same data, order and seed"),
    ],
)
def test_the_same_work_is_said_by_what_proves_it(base: Fields, vm: Fields, proof: str, save: Save) -> None:
    found = compared(save, base, vm=vm)
    assert said(found) == f"All targets {proof}."
    assert [one.trials for one in of_arms(found).values()] == [2]
    assert '"same_work": [\n' in as_json(found)


def test_nothing_is_said_of_work_that_no_record_holds(save: Save) -> None:
    nothing = work(losses={}, weights=None)
    text = " ".join(answer(compared(save, nothing, vm=nothing)).lines)
    assert not [word for word in ("computed", "generated") if word in text]


OTHER = {
    "a-thousand-times-larger": (work(scaled(1000.0)), "computed other losses"),
    "one-bit-of-one-loss": (work({"loss": [7.0, 6.5, 6.250000000000001]}), "computed other losses"),
    "other-names": (work({"score": LOSSES["loss"]}), "computed other losses"),
    "no-losses": (work({}), "recorded losses on one side alone"),
    "other-weights": (work(weights="cd" * 32), "computed other weights"),
    "no-weights": (work(weights=None), "recorded weights on one side alone"),
}


@pytest.mark.parametrize("odd", ["container", "bare-metal"])
def test_other_work_on_equal_cpus_is_refused_and_force_marks_it(odd: str, save: Save) -> None:
    for name, (fields, _) in OTHER.items():
        base, container = (fields, work()) if odd == "bare-metal" else (work(), fields)
        saved(save, base, model=name, container=container)
    refused, forced = by_model(save.compare()), by_model(save.compare(force=True))
    assert refused.keys() == forced.keys() == OTHER.keys()
    for name, (_, text) in OTHER.items():
        found = refused[name]
        assert ratio_of(found, "container") is None
        (refusal,) = (one for one in found.warnings if one.kind == "incomparable")
        assert f"no ratio is formed: {text}" in refusal.message
        assert refusal.advice.startswith("machine, threads and vector instructions agree: ")
        assert "reproducible = False" in refusal.advice
        assert said(found).startswith(f"Beside bare-metal, container {text}")
        assert ratio_of(forced[name], "container") == pytest.approx(1.0)
        (marked,) = (one for one in forced[name].groups[0].targets if one.target == "container")
        assert marked.marks == (f"forced: {text}",)


OTHER_DRAWS = "drew other data, another order or another seed"
ROUNDING: dict[str, Fields] = {
    "an emulated CPU": {"accelerator": "tcg", "cpu_model": "QEMU TCG CPU"},
    "a virtual machine, whose caches are its own": {"accelerator": "kvm"},
    "other vector instructions": {"cpu_flags": ["avx2"]},
}


@pytest.mark.parametrize("why", ROUNDING)
def test_where_rounding_may_differ_near_losses_pass_and_are_said_with_the_reason(why: str, save: Save) -> None:
    near = work(scaled(1 + TOLERANCE / 2), weights="cd" * 32, **ROUNDING[why])
    found = compared(save, work(), vm=near)
    assert ratio_of(found, "vm") == pytest.approx(1.0)
    told = said(found)
    assert told.startswith("All targets computed losses within 4.76 % (other ")
    assert told.endswith("no other seed was measured), which does not prove the same data, order or seed.")
    assert not [one for one in found.groups[0].targets[1].marks if "losses" in one]


@pytest.mark.parametrize("why", ROUNDING)
def test_where_rounding_may_differ_other_work_is_named(why: str, save: Save) -> None:
    named = OTHER.keys() - {"one-bit-of-one-loss", "other-weights"}
    for name in named:
        environment = work(**ROUNDING[why])["environment"]
        saved(save, work(), model=name, vm=OTHER[name][0] | {"environment": environment})
    models = by_model(save.compare())
    assert models.keys() == named
    for name, found in models.items():
        text = OTHER[name][1]
        assert ratio_of(found, "vm") == pytest.approx(1.0)
        vm = found.groups[0].targets[1]
        assert "other losses or weights" in ", ".join(vm.marks).replace("CPU, ", "")
        assert text in vm.differences
        assert said(found).startswith(f"Beside bare-metal, vm {text}")


def test_a_target_that_does_other_work_is_named_beside_those_that_do_not(save: Save) -> None:
    assert said(compared(save, work(), container=work(), vm=work(scaled(1000.0), accelerator="kvm"))) == (
        "Beside bare-metal, vm computed other losses (99.9 % apart); container computed the same weights, bit for bit."
    )


def test_ablations_and_the_second_bare_metal_trial_are_held_against_the_first_too(save: Save) -> None:
    save(**work())
    save(replica=1, **work(scaled(2.0)))
    save(target="container", **work())
    save(target="container", ablation="podman", **work(weights="cd" * 32))
    found = save.compare()
    kinds = {arm: one.kind for arm, one in of_arms(found).items()}
    assert kinds == {"bare-metal-again": "other", "container": "weights", "container+podman": "other"}
    assert not found.of_kind("ablation"), "the switched trial did other work than the one it would be compared with"


@pytest.mark.parametrize(
    "trials",
    [(work(scaled(2.0)), work()), (work(), work(scaled(2.0))), (work(drawn="0" * 64), work(drawn="1" * 64))],
)
def test_a_ratio_to_two_bare_metal_trials_is_refused_if_either_did_other_work(
    trials: tuple[Fields, Fields], save: Save
) -> None:
    for number, fields in enumerate(trials):
        save(replica=number, **fields)
    save(target="container", **trials[0])
    assert ratio_of(save.compare(), "container") is None


def test_two_bare_metal_trials_that_are_near_each_other_are_one_where_rounding_may_differ(save: Save) -> None:
    for number in range(2):
        save(replica=number, device="cuda", **work(scaled(1 + number / 100), weights=f"{number}" * 64))
    save(target="container", device="cuda", **work(scaled(1.02)))
    found = save.compare()
    assert ratio_of(found, "container") == pytest.approx(1.0)
    assert said(found).startswith("All targets computed losses within 1.96 % (a GPU; no other seed was measured)")


@pytest.mark.parametrize(
    ("base", "own", "difference"),
    [(work(), work(scaled(3.0)), "computed other losses"), (work(drawn=DIGEST), work(drawn="ef" * 32), OTHER_DRAWS)],
)
def test_a_workload_that_the_seed_does_not_decide_is_named_and_not_refused(
    base: Fields, own: Fields, difference: str, save: Save
) -> None:
    free = {"reproducible": False}
    found = compared(save, base | free, container=own | free)
    assert ratio_of(found, "container") == pytest.approx(1.0)
    assert found.groups[0].targets[1].differences == (difference,)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"devices": Devices(device="cuda")}, "a GPU"),
        ({"devices": Devices(devices=2, parallel="ddp")}, ""),
        ({"devices": Devices(devices=3, parallel="ddp")}, "sums over ranks in any order"),
        ({"devices": Devices(devices=4, parallel="parameter-cpu")}, ""),
        ({"reproducible": False}, "a workload that the seed alone does not decide"),
    ],
)
def test_a_job_says_why_equal_machines_may_end_in_other_bits(changes: Fields, why: str) -> None:
    envelope = {"cpus": [0], "memory_bytes": 1 << 30, "threads": 1}
    values = {"scenario": "synthetic", "model": "vae", "data": "synthetic", "profile": "smoke", "envelope": envelope}
    assert Job.model_validate(values).model_copy(update=changes).rounds_freely == why


@pytest.mark.parametrize("why", ROUNDING)
def test_other_draws_are_refused_even_where_rounding_may_differ(why: str, save: Save) -> None:
    reasons = {"ef" * 32: OTHER_DRAWS, None: "recorded a digest of its draws on one side alone"}
    for drawn, times in product(reasons, (1.0, 1.0001)):
        other = work(scaled(times), "cd" * 32, drawn, **ROUNDING[why])
        saved(save, work(drawn=DIGEST), model=f"{drawn}-{times}", vm=other)
    models = by_model(save.compare())
    for drawn, times in product(reasons, (1.0, 1.0001)):
        found = models[f"{drawn}-{times}"]
        assert ratio_of(found, "vm") is None
        (refusal,) = (one for one in found.warnings if one.kind == "incomparable")
        assert f"no ratio is formed: {reasons[drawn]}" in refusal.message
        assert "one seed draws the same on every machine" in refusal.advice
        assert said(found) == f"Beside bare-metal, vm {reasons[drawn]}."


PROOFS = {
    ("equal draws", "near"): "drew the same data, order and seed and computed the same losses within 0.0990 % ",
    ("equal draws", "as other seeds"): "drew the same data, order and seed and computed losses within 4.76 % ",
    ("none", "near"): "computed the same losses within 0.0990 % ",
    ("none", "as other seeds"): "computed losses within 4.76 % ",
}


@pytest.mark.parametrize(("draws", "losses"), PROOFS)
def test_losses_prove_only_what_other_seeds_do_not_reach(draws: str, losses: str, save: Save) -> None:
    share = 1.000991 if losses == "near" else 1.05
    drawn = [f"{block}" * 64 if draws == "equal draws" else None for block in range(2)]
    for block, seed in enumerate((1.0, 1.04)):
        save(block=block, seed=block, **work(scaled(seed), drawn=drawn[block]))
        vm = work(scaled(seed * share), "cd" * 32, drawn[block], accelerator="kvm")
        save(block=block, seed=block, target="vm", **vm)
    found = save.compare()
    assert ratio_of(found, "vm") == pytest.approx(1.0), "both pass, by other words"
    told = said(found)
    assert told.startswith(f"All targets {PROOFS[draws, losses]}(other accelerator; other seeds: 3.85 %)")
    assert told.endswith("does not prove the same data, order or seed.") == (draws == "none" and losses != "near")


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ((100, 100), "All targets ended at the same step."),
        ((50, 100), "Beside bare-metal, container ended at step 50 and not 100; vm ended at the same step."),
        ((None, 100), "Beside bare-metal, container printed a step on one side alone; vm ended at the same step."),
    ],
)
def test_a_command_that_ends_at_another_step_is_refused(
    steps: tuple[int | None, int], sentence: str, save: Save
) -> None:
    container, base = ({"steps": None, "timeline": None, "last_step": step} for step in steps)
    found = compared(save, base, container=container, vm=base)
    assert ratio_of(found, "vm") == pytest.approx(1.0)
    other = steps[0] != steps[1]
    assert (ratio_of(found, "container") is None) == other
    assert said(found) == sentence
    advice = {one.advice for one in found.warnings if one.kind == "incomparable"}
    assert all("print the last step at the end of the command" in text for text in advice)
    assert bool(advice) == other


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        (DIGEST, "All targets gave the same answers."),
        (OTHER_DIGEST, "Beside bare-metal, container did not give the same answers; vm gave the same answers."),
        (None, "Beside bare-metal, container did not give the same answers; vm gave the same answers."),
    ],
)
def test_a_server_that_answers_otherwise_is_named_and_compared(answers: str | None, sentence: str, save: Save) -> None:
    container, base = ({"steps": None, "timeline": None, "answers_sha256": digest} for digest in (answers, DIGEST))
    found = compared(save, base, container=container, vm=base)
    assert ratio_of(found, "container") == pytest.approx(1.0)
    assert said(found) == sentence


@pytest.mark.parametrize(("own", "is_refused"), [("tokens", True), ("samples", False), (None, False)])
def test_rates_of_other_things_have_no_ratio(own: str | None, is_refused: bool, save: Save) -> None:
    base = {"steps": None, "timeline": None, "counted": "samples"}
    found = compared(save, base, container=base | {"counted": own}, vm=base)
    assert ratio_of(found, "vm") == pytest.approx(1.0)
    assert (ratio_of(found, "container") is None) == is_refused
    messages = [one.message for one in found.warnings if one.kind == "incomparable"]
    assert any("counted tokens against samples" in message for message in messages) == is_refused


def test_the_unit_is_that_of_the_output_if_the_job_leaves_it_open(save: Save) -> None:
    base = {"steps": None, "timeline": None, "counted": "tokens", "unit": "units"}
    found = compared(save, base, container=base)
    assert [group.metrics[0].unit for group in found.groups] == ["tokens/s"]


def test_seeds_that_differ_have_nothing_to_compare() -> None:
    assert agreement(computed(1, LOSSES, DIGEST), computed(2, scaled(9.0), None), may_round=False) is None


columns = st.dictionaries(
    st.sampled_from(["generator", "critic"]), st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), max_size=2
)


@given(columns, columns, st.sampled_from(["", DIGEST]), st.sampled_from(["", "cd" * 32]), st.booleans())
def test_two_trials_agree_only_if_their_bits_do_or_rounding_may_differ(
    mine: dict[str, list[float]], its: dict[str, list[float]], own: str, base: str, may_round: bool
) -> None:
    left, right = (computed(0, losses, digest or None) for losses, digest in ((mine, own), (its, base)))
    found = agreement(left, right, may_round=may_round)
    assert found == agreement(right, left, may_round=may_round), "neither side is the better one"
    assert (found is None) == (not any(one.losses or one.weights for one in (left, right)))
    if found and found.kind in ("near", "unproven"):
        assert may_round
        assert known(found.apart) <= TOLERANCE
    elif found:
        assert (found.kind == "other") == (left != right)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30), st.floats(0, 0.5))
def test_the_distance_is_the_mean_difference_as_a_share_of_the_early_steps(column: list[float], share: float) -> None:
    base: Computed = computed(0, {"loss": column}, None)
    assert base.apart(base) == 0.0
    larger = computed(0, {"loss": [loss / (1 - share) for loss in column]}, None)
    assert larger.apart(base) == pytest.approx(share, abs=1e-9)
    late = computed(0, {"loss": [*column, *[1.0] * 30][:30]}, None)
    later = computed(0, {"loss": [*[*column, *[1.0] * 30][:20], *[9.0] * 10]}, None)
    assert late.apart(later) == 0.0, "what comes later may have grown out of rounding"


PLAIN = np.full((16, 32), 100, np.uint8)
EMULATED: Fields = {"accelerator": "tcg", "cpu_model": "QEMU TCG CPU"}


def changed(*differences: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    pixels = PLAIN.copy()
    for row, column, difference in differences:
        pixels[row, column] += difference
    return pixels


def images(
    pixels: npt.NDArray[np.uint8] | None = PLAIN, weights: str = DIGEST, digest: str = DIGEST, **inside: Any
) -> Fields:
    """Return fields of a record whose generator has these weights, and made these pixels."""
    out = io.BytesIO()
    if pixels is not None:
        Image.fromarray(pixels).save(out, format="PNG")
    grid = None if pixels is None else Grid(b64encode(out.getvalue()).decode())
    generated = Generated(images=16, weights_sha256=weights, pixels_sha256=digest, png=grid)
    return {**work(weights=weights, **inside), "generated": generated, "generate": 16}


def test_the_same_pixels_of_the_same_weights_are_said(save: Save) -> None:
    found = compared(save, images(), container=images(), vm=images(**EMULATED))
    assert answer(found).facts[-2:] == (
        "All targets computed the same weights, bit for bit.",
        "All targets generated the same images from the same weights.",
    )
    for arm in ("container", "vm"):
        image = image_of(found, arm)
        assert (image.trials, image.other_weights, image.other_pixels, image.most) == (2, 0, 0, None)


@pytest.mark.parametrize(
    ("pixels", "weights", "clause", "most", "mean"),
    [
        (changed((0, 0, 3), (5, 5, 1)), DIGEST, "the same weights: pixels at most 3", 3, 4 / 512),
        (changed((0, 0, 5)), OTHER_DIGEST, "other weights: pixels at most 5 of 255", 5, 5 / 512),
        (PLAIN, OTHER_DIGEST, "other weights: pixels at most 0 of 255", 0, 0.0),
        (changed((0, 0, 5))[:8], OTHER_DIGEST, "other weights: pixels at most 5", 5, 5 / 256),
        (None, OTHER_DIGEST, "other weights", None, None),
        (np.stack([PLAIN] * 3, axis=-1), OTHER_DIGEST, "other weights", None, None),
    ],
)
def test_other_pixels_are_said_with_their_greatest_and_mean_difference(
    pixels: Any, weights: str, clause: str, most: int | None, mean: float | None, save: Save
) -> None:
    found = compared(save, images(), container=images(), vm=images(pixels, weights, OTHER_DIGEST, **EMULATED))
    sentence = said(found)
    assert sentence.startswith(f"Beside bare-metal, vm generated other images from {clause}")
    assert sentence.endswith("; container generated the same images from the same weights.")
    assert ("pixels" in sentence) == (most is not None)
    image = image_of(found, "vm")
    assert (image.trials, image.other_pixels, image.most) == (2, 2, most)
    assert image.mean == pytest.approx(mean)
    assert [Path(path).parent.name for path in image.records] == ["trials", "trials"]


def test_the_pair_that_differs_most_is_the_one_that_is_told_and_shown(save: Save) -> None:
    for block, difference in enumerate((1, 9, 4)):
        save(block=block, seed=block, **images())
        own = images(changed((2, 2, difference)), digest=OTHER_DIGEST, **EMULATED)
        save(block=block, seed=block, target="vm", **own)
    image = image_of(save.compare(), "vm")
    assert (image.most, [path[-9:] for path in image.records]) == (9, ["b001.json", "b001.json"])


def test_every_form_of_the_results_says_it_and_the_page_shows_the_grids(save: Save) -> None:
    own = images(changed((0, 0, 3)), digest=OTHER_DIGEST)
    found = compared(save, images(), container=own)
    sentence = "container generated other images from the same weights: pixels at most 3 of 255 apart"
    (row,) = json_of(found)["groups"][0]["same_work"]
    assert (row["image"]["most"], row["image"]["other_weights"]) == (3, 0)
    page = save.page()
    same = "All targets computed the same weights, bit for bit."
    for text in (as_markdown(found), printed(document(found)), page):
        assert same in text
        assert f"Beside bare-metal, {sentence}" in text
    places = [page.index(f"data:image/png;base64,{each['generated'].png.root}") for each in (images(), own)]
    assert places == sorted(places)
    assert [page.count(f"generated on {arm}</figcaption>") for arm in ("bare-metal", "container")] == [1, 1]


@pytest.mark.parametrize(("scenario", "model"), [("probe", "startup"), ("startup", "2-instances")])
def test_nothing_is_said_of_the_work_of_probes_which_train_nothing(save: Save, scenario: str, model: str) -> None:
    metrics = {"first-step": MetricValue(value=2.0, unit="s", better="less")}
    fields = {**work(), "scenario": scenario, "metrics": metrics, "throughput_per_s": None}
    saved(save, fields, model=model, container=fields)
    found = save.compare()
    assert found.groups
    assert of_arms(found) == {}
    assert "computed" not in " ".join(answer(found).lines)
