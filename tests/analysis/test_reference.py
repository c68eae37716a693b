import pytest

from analysis.figures.reference import normalised


def test_every_published_value_is_over_that_of_bare_metal() -> None:
    assert len(normalised()) == 12 + 4 * 12
    assert {ratio for key, ratio in normalised().items() if key[3] == "bare-metal"} == {1.0}


@pytest.mark.parametrize(
    ("key", "ratio"),
    [
        (("real", "real", "alexnet", "container-vm", "elapsed"), 200 / 157),
        (("distributed", "synthetic", "inception_v3", "vm", "throughput"), 44 / 57),
        (("distributed", "synthetic", "inception_v3", "container-vm", "elapsed"), 391 / 261),
        (("distributed", "real", "resnet50", "bare-metal", "throughput"), 1.0),
    ],
)
def test_single_values_are_those_of_the_figures(key: tuple[str, str, str, str, str], ratio: float) -> None:
    assert normalised()[key] == pytest.approx(ratio)


def test_the_layers_of_the_paper_add_up_nearly_everywhere() -> None:
    ratios = normalised()
    for scenario, data, model, target, metric in ratios:
        if target == "container-vm":
            alone = [ratios[scenario, data, model, layer, metric] for layer in ("container", "vm")]
            assert 0.85 < ratios[scenario, data, model, target, metric] / (alone[0] * alone[1]) < 1.15


def test_every_published_target_and_model_is_one_of_the_suites() -> None:
    assert {key[3] for key in normalised()} == {"bare-metal", "container", "vm", "container-vm"}
    assert {key[2] for key in normalised()} == {"inception_v3", "resnet50", "alexnet"}
