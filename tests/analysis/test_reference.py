import pytest

from analysis.compare.comparison import compare
from analysis.figures.reference import load_reference, normalised


def test_the_papers_numbers_loaded_as_a_run_give_its_normalised_figures() -> None:
    comparison = compare(load_reference())
    assert comparison.warnings == ()
    found = {
        (group.job.scenario, group.job.data, group.model, summary.target, metric): estimate.ratio
        for group in comparison.groups
        for summary in group.targets
        for metric, estimate in summary.estimates.items()
    }
    assert found == pytest.approx(dict(normalised()))
    assert len(found) == 12 + 4 * 12


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
    for group in compare(load_reference()).groups:
        for effect in group.interactions.values():
            assert 0.85 < effect.ratio < 1.15
            assert effect.interval is None


def test_every_published_target_and_model_is_one_of_the_suites() -> None:
    assert {key[3] for key in normalised()} == {"bare-metal", "container", "vm", "container-vm"}
    assert {key[2] for key in normalised()} == {"inception_v3", "resnet50", "alexnet"}
