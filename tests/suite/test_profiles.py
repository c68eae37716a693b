import pytest

from suite.errors import RequestError
from suite.job.profiles import PROFILES, Profile, Sizes, check_sizes
from suite.registries import WORKLOADS
from suite.request.request import RunRequest


def test_the_paper_profile_is_table_1_of_the_paper() -> None:
    workloads = {name: PROFILES["paper"].sizes_of(name) for name in ("inception_v3", "resnet50", "alexnet")}
    # shared/reference/README.md: batch per device 32, 32, 512; 10 warm-up steps, then 100 measured steps.
    assert {model: w.batch for model, w in workloads.items()} == {"inception_v3": 32, "resnet50": 32, "alexnet": 512}
    assert {(w.warmup_steps, w.steps) for w in workloads.values()} == {(10, 100)}
    # The models' own image sizes.
    assert {name: w.image_px for name, w in workloads.items()} == {"inception_v3": 299, "resnet50": 224, "alexnet": 224}


def test_the_gpu_profile_has_the_sizes_of_paper_and_is_long_enough_for_clocks_to_settle() -> None:
    for name in WORKLOADS:
        gpu, paper = (PROFILES[profile].sizes_of(name) for profile in ("gpu", "paper"))
        assert gpu == paper.model_copy(update={"steps": 1000, "settle_s": 5.0, "least_s": 20.0})


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
def test_every_profile_says_what_it_is_for_and_has_every_model(profile: Profile) -> None:
    assert PROFILES[profile.name] is profile
    assert profile.summary
    for name in WORKLOADS:
        check_sizes(name, profile.sizes_of(name), name)


def test_profiles_grow_from_smoke_to_paper() -> None:
    def work(name: str) -> int:
        sizes = [PROFILES[name].sizes_of(workload) for workload in WORKLOADS]
        return sum(w.batch * (w.image_px or 0) ** 2 * (w.steps + w.warmup_steps) for w in sizes)

    assert work("smoke") < work("quick") < work("paper")


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match="--profile 'papier' is unknown") as caught:
        RunRequest.of({"profile": "papier"})
    assert str(caught.value.remedy).endswith("choose among paper, gpu, quick, smoke")


def test_a_workload_without_sizes_for_a_profile_is_refused_with_those_it_has() -> None:
    huge = PROFILES["paper"].model_copy(update={"name": "huge"})
    with pytest.raises(RequestError, match="alexnet has no sizes for the profile huge") as caught:
        huge.sizes_of("alexnet")
    assert caught.value.remedy == "use --profile paper or quick or smoke"


@pytest.mark.parametrize("change", [{"batch": 0}, {"image_px": -1}, {"steps": 0}, {"warmup_steps": -1}, {"more": 1}])
def test_a_workload_holds_no_nonsense(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Sizes.model_validate({"batch": 1, "image_px": 1, "warmup_steps": 0, "steps": 1} | change)


@pytest.mark.parametrize(
    ("model", "batch", "image_px", "least"),
    [("resnet50", 1, 32, 2), ("inception_v3", 1, 106, 2), ("resnet50", 1, 33, None), ("alexnet", 1, 64, None)],
)
def test_a_batch_of_one_is_refused_where_its_last_layers_are_single_numbers(
    model: str, batch: int, image_px: int, least: int | None
) -> None:
    sizes = Sizes(batch=batch, image_px=image_px, warmup_steps=1, steps=2)
    if least is None:
        check_sizes(model, sizes, f"--model {model}")
        return
    with pytest.raises(RequestError, match=f"cannot train on batches of 1 at {image_px} px") as refused:
        check_sizes(model, sizes, f"--model {model}")
    assert refused.value.remedy == f"give --batch {least} or more"
