import pytest

from suite.errors import RequestError
from suite.job.profiles import MODELS, PROFILES, Profile, Sizes, get_profile


def test_the_paper_profile_is_table_1_of_the_paper() -> None:
    workloads = PROFILES["paper"].workloads
    # shared/reference/README.md: batch per device 32, 32, 512; 10 warm-up steps, then 100 measured steps.
    assert {model: w.batch for model, w in workloads.items()} == {"inception_v3": 32, "resnet50": 32, "alexnet": 512}
    assert {(w.warmup_steps, w.steps) for w in workloads.values()} == {(10, 100)}
    # The models' own image sizes.
    assert {model: w.image_px for model, w in workloads.items()} == {
        "inception_v3": 299,
        "resnet50": 224,
        "alexnet": 224,
    }


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
def test_every_profile_says_what_it_is_for_and_has_every_model(profile: Profile) -> None:
    assert PROFILES[profile.name] is profile
    assert profile.summary
    assert tuple(profile.workloads) == MODELS
    # Smaller images do not pass through the model's layers.
    assert profile.workloads["inception_v3"].image_px >= 75
    assert profile.workloads["alexnet"].image_px >= 63


def test_profiles_grow_from_smoke_to_paper() -> None:
    def work(name: str) -> int:
        return sum(w.batch * w.image_px**2 * (w.steps + w.warmup_steps) for w in PROFILES[name].workloads.values())

    assert work("smoke") < work("quick") < work("paper")


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match="no profile 'papier'") as caught:
        get_profile("papier")
    assert caught.value.remedy == "choose one of paper, quick, smoke"


def test_a_known_profile_is_given() -> None:
    assert get_profile("smoke") is PROFILES["smoke"]


@pytest.mark.parametrize("change", [{"batch": 0}, {"image_px": -1}, {"steps": 0}, {"warmup_steps": -1}, {"more": 1}])
def test_a_workload_holds_no_nonsense(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Sizes.model_validate({"batch": 1, "image_px": 1, "warmup_steps": 0, "steps": 1} | change)
