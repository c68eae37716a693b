"""The mathematics of the generative workloads: losses made by hand, gradients, and a step beside a plain script."""

import copy
import json
import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.functional import avg_pool2d, interpolate
from torch.nn.parallel import DistributedDataParallel

from suite.registries import WORKLOADS
from worker.spec import parse_spec
from worker.training.build import build_network, build_trainer, opened_batches
from worker.training.device import Device, Numerics, numerics_of
from worker.training.growing import (
    Critic,
    GrowingGenerator,
    fade,
    gradient_penalty,
    move_average,
    sizes_to,
    with_deviation,
)
from worker.training.step import Samples, Training
from worker.workloads.adversarial import GAN, GAN_PUBLISHED, Adversarial, cross_entropy
from worker.workloads.dcgan import DCGAN, DCGAN_PUBLISHED
from worker.workloads.progressive_gan import PROGRESSIVE_GAN
from worker.workloads.vae import VAE, gaussian_divergence
from worker.workloads.workload import Shape, Workload

CPU = Device("cpu")
GENERATIVE = ("gan", "gan-published", "dcgan", "dcgan-published", "vae", "progressive-gan")
GREY, COLOUR = Shape(28, 1), Shape(32, 3)
COMPILED = replace(numerics_of("tuned", "cpu"), compiled=True)


def parameters(network: nn.Module) -> int:
    return sum(each.numel() for each in network.parameters())


@pytest.mark.parametrize(
    ("workload", "shape", "generator", "discriminator"),
    [
        # shared/reference/gan-on-kubernetes.md, and for 64 px PyTorch's example.
        (GAN_PUBLISHED, GREY, 1_505_680, 566_273),
        (GAN_PUBLISHED, COLOUR, 3_850_880, 1_737_729),
        (DCGAN_PUBLISHED, GREY, 747_841, 9_105),
        (DCGAN_PUBLISHED, COLOUR, 749_891, 535_681),
        (DCGAN, Shape(64, 3), 3_576_704, 2_765_568),
    ],
)
def test_networks_have_the_parameters_of_the_reference(
    workload: Adversarial, shape: Shape, generator: int, discriminator: int
) -> None:
    network = workload.build(shape)
    found = [parameters(network.get_submodule(name)) for name in ("generator", "discriminator")]
    assert found == [generator, discriminator]


@pytest.mark.parametrize("shape", [GREY, COLOUR, Shape(64, 3)])
@pytest.mark.parametrize("workload", [GAN, DCGAN, VAE])
def test_what_is_made_has_the_shape_of_the_data(workload: Workload, shape: Shape) -> None:
    with torch.no_grad():
        images = workload.generate(workload.build(shape), 3)
    assert isinstance(images, torch.Tensor)
    assert images.shape == (3, shape.channels, shape.px, shape.px)
    low, high = (-1, 1) if workload.pixels == "signed" else (0, 1)
    assert low <= float(images.min()) <= float(images.max()) <= high


def test_the_published_networks_keep_their_mistakes() -> None:
    network = DCGAN_PUBLISHED.build(COLOUR)
    assert DCGAN_PUBLISHED.generate(network, 2).shape == (2, 3, 28, 28)
    judge = network.get_submodule("discriminator")
    assert judge(torch.zeros(2, 3, 32, 32)).shape == (2, 4), "four logits for each real image"
    assert judge(torch.zeros(2, 3, 28, 28)).shape == (2, 1)


def test_the_divergence_of_a_gaussian_made_by_hand() -> None:
    mean, log_variance = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(4.0)]])
    assert float(gaussian_divergence(mean, log_variance)) == pytest.approx(0.5 + 0.5 * (4 - 1 - math.log(4)))


def training_of(workload: Workload, shape: Shape, *, sparing: bool = False) -> Training:
    network = build_network(workload, shape, 3)
    return Training(network, workload.optimizers(network), CPU, Numerics(sparing=sparing))


def images_of(workload: Workload, shape: Shape, count: int) -> torch.Tensor:
    made = torch.rand(count, shape.channels, shape.px, shape.px, generator=torch.Generator().manual_seed(11))
    return made * 2 - 1 if workload.pixels == "signed" else made


@pytest.mark.usefixtures("double")
def test_a_step_of_dcgan_is_that_of_a_plain_script() -> None:
    """The loop of PyTorch's example, with BCELoss after a sigmoid, from the same weights and noise."""
    images = images_of(DCGAN, COLOUR, 4)
    ours = training_of(DCGAN, COLOUR)
    net_g, net_d = (copy.deepcopy(ours.network.get_submodule(name)) for name in ("generator", "discriminator"))
    criterion = nn.BCELoss()
    optimizer_d, optimizer_g = (torch.optim.Adam(n.parameters(), lr=2e-4, betas=(0.5, 0.999)) for n in (net_d, net_g))
    torch.manual_seed(5)
    given = []
    for _ in range(2):
        net_d.zero_grad()
        error_real = criterion(net_d(images).sigmoid().view(-1), torch.ones(4))
        error_real.backward()
        fake = net_g(torch.randn(4, 100, 1, 1))
        error_fake = criterion(net_d(fake.detach()).sigmoid().view(-1), torch.zeros(4))
        error_fake.backward()
        optimizer_d.step()
        net_g.zero_grad()
        error_g = criterion(net_d(fake).sigmoid().view(-1), torch.ones(4))
        error_g.backward()
        optimizer_g.step()
        given.append([float(each.detach()) for each in (error_real, error_fake, error_g)])
    torch.manual_seed(5)
    for losses in given:
        found = DCGAN.step(ours, images, torch.zeros(4))
        assert [float(found[name].detach()) for name in DCGAN.losses[:3]] == pytest.approx(losses, rel=1e-6)
    for name, plain in (("generator", net_g), ("discriminator", net_d)):
        for mine, its in zip(ours.network.get_submodule(name).parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-5)


def test_gradients_that_nobody_uses_are_spared_by_the_tuned_recipe_alone_and_change_nothing() -> None:
    images = images_of(DCGAN, COLOUR, 4)
    asked, found = dict[bool, bool](), {}
    for sparing in (False, True):
        training = training_of(DCGAN, COLOUR, sparing=sparing)
        judge = training.network.get_submodule("discriminator")
        last = list(judge.parameters())[-1]
        with training.passing_through(judge):
            asked[sparing] = last.requires_grad
        torch.manual_seed(5)
        for _ in range(2):
            DCGAN.step(training, images, torch.zeros(4))
        found[sparing] = [each.detach() for each in training.network.parameters()]
        assert last.requires_grad
    assert asked == {False: True, True: False}
    for one, other in zip(found[False], found[True], strict=True):
        torch.testing.assert_close(one, other)


def test_the_published_step_takes_the_mean_of_both_halves_and_new_noise() -> None:
    images = images_of(GAN_PUBLISHED, GREY, 4)
    ours = training_of(GAN_PUBLISHED, GREY)
    generator, judge = (copy.deepcopy(ours.network.get_submodule(name)) for name in ("generator", "discriminator"))
    torch.manual_seed(5)
    fake = generator(torch.randn(4, 64)).detach()
    whole = 0.5 * (cross_entropy(judge(fake), real=False) + cross_entropy(judge(images), real=True))
    whole.backward()  # type: ignore[no-untyped-call]
    torch.optim.Adam(judge.parameters(), lr=1e-5).step()
    loss = cross_entropy(judge(generator(torch.randn(4, 64))), real=True)
    torch.manual_seed(5)
    assert float(GAN_PUBLISHED.step(ours, images, torch.zeros(4))["generator"].detach()) == pytest.approx(
        float(loss.detach()), rel=1e-5
    )
    updated = ours.network.get_submodule("discriminator").parameters()
    for mine, its in zip(updated, judge.parameters(), strict=True):
        torch.testing.assert_close(mine, its)


def test_the_gradient_penalty_is_that_of_the_closed_form() -> None:
    torch.manual_seed(2)
    weights = torch.randn(12, dtype=torch.float64)

    def critic(images: torch.Tensor) -> torch.Tensor:
        return (images.flatten(1) @ weights).sin()

    real, fake = (torch.randn(3, 3, 2, 2, dtype=torch.float64) for _ in range(2))
    torch.manual_seed(7)
    found = gradient_penalty(critic, real, fake)
    torch.manual_seed(7)
    mixed = torch.lerp(real, fake, torch.rand(3, 1, 1, 1, dtype=torch.float64))
    # Of the critic sin(w x) the gradient is w cos(w x).
    norms = (mixed.flatten(1) @ weights).cos().abs() * weights.norm()
    assert float(found.detach()) == pytest.approx(float((norms - 1).square().mean()))


def test_the_penalty_teaches_the_critic_and_not_the_generator() -> None:
    critic = Critic(Shape(8, 1))
    real, fake = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8, requires_grad=True)
    gradient_penalty(critic, real, fake.detach()).backward()  # type: ignore[no-untyped-call]
    assert fake.grad is None
    assert all(each.grad is not None for each in critic.blocks.parameters() if each.ndim > 1)


def test_a_size_that_is_faded_in_wholly_is_that_of_its_own_layers_alone() -> None:
    torch.manual_seed(1)
    generator, critic = GrowingGenerator(Shape(8, 1), 16), Critic(Shape(8, 1))
    noise, images = torch.randn(2, 16), torch.randn(2, 1, 8, 8)
    none, whole = generator(noise, 1, 1e-9), generator(noise, 1, 1.0)
    torch.testing.assert_close(none, interpolate(generator(noise, 0), scale_factor=2.0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(generator(noise, 1, 0.5), (none + whole) / 2, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(critic(images, 1, 1e-9), critic(avg_pool2d(images, 2), 0), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(critic(images, 1, 1.0), critic(images, 1, 1e-9))
    assert torch.equal(fade(images, 8, 1.0), images)
    assert torch.equal(fade(images, 4, 1.0), avg_pool2d(images, 2))


def test_layers_and_statistics_are_those_of_the_paper() -> None:
    assert sizes_to(64) == [4, 8, 16, 32, 64]
    weight = GrowingGenerator(Shape(8, 3), 512).blocks[1][0]  # type: ignore[index]
    assert float(weight.weight.detach().std()) == pytest.approx(1.0, abs=0.01)
    assert weight.factor == pytest.approx(math.sqrt(2 / (512 * 9)))
    alike = torch.ones(3, 2, 4, 4)
    assert float(with_deviation(alike).detach()[:, -1].max()) == pytest.approx(1e-4)
    assert with_deviation(torch.stack([alike[0], -alike[0]]))[0, -1, 0, 0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("progress", "wanted"),
    [(0.05, (0, 1.0)), (0.25, (1, 0.25)), (0.5, (1, 1.0)), (0.7, (2, 0.5)), (0.9, (2, 1.0)), (1.0, (2, 1.0))],
)
def test_a_job_goes_through_all_sizes(progress: float, wanted: tuple[int, float]) -> None:
    assert PROGRESSIVE_GAN.size_at(progress, 16) == pytest.approx(wanted)
    assert PROGRESSIVE_GAN.stages(16) == 2 * len(sizes_to(16)) - 1


def test_the_averaged_generator_follows_slowly() -> None:
    average, network = nn.Linear(2, 2), nn.Linear(2, 2)
    pairs = zip(average.parameters(), network.parameters(), strict=True)
    wanted = [0.999 * mean.detach() + 0.001 * own.detach() for mean, own in pairs]
    move_average(average, network, 0.999)
    for found, each in zip(average.parameters(), wanted, strict=True):
        torch.testing.assert_close(found, each)


@pytest.mark.parametrize("recipe", ["reference", "tuned"])
@pytest.mark.parametrize("name", GENERATIVE)
def test_every_step_has_its_phases_and_losses(name: str, recipe: Any, spec: dict[str, Any]) -> None:
    workload = WORKLOADS.get(name)
    px = 8 if name == "progressive-gan" else workload.sizes["smoke"][1]
    place = {"workload": WORKLOADS.own[name], "image_px": px, "channels": workload.channels, "batch": 2}
    given = parse_spec(json.dumps({**spec, **place, "recipe": recipe}))
    with opened_batches(given) as batches:
        trainer = build_trainer(given, [CPU], batches)
        samples = Samples.allocate(2, trainer.phases, trainer.parts)
        for index in range(2):
            trainer.step(samples, index)
    columns, losses = samples.columns(), samples.lost()
    phases = columns["phases"]
    assert isinstance(phases, dict)
    assert tuple(phases) == workload.phases
    assert all(min(column) > 0 for column in phases.values())
    for index, computed_s in enumerate(columns["compute_s"] or ()):
        assert isinstance(computed_s, float)
        assert sum(column[index] for column in phases.values()) <= computed_s * (1 + 1e-6)
    assert tuple(losses) == workload.losses
    assert all(math.isfinite(loss) for column in losses.values() for loss in column)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """What was given to the compiler, which leaves it as it is."""
    given: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        given.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    return given


def test_networks_are_compiled_each_by_itself_and_keep_their_names(graphs: list[torch.fx.GraphModule]) -> None:
    """A Sequential, too, of which ``Module.compile`` compiles nothing."""
    networks = GAN.build(GREY)
    names = [*networks.state_dict()]
    assert COMPILED.compile(networks) is networks
    assert [*networks.state_dict()] == names
    networks.get_submodule("generator")(torch.randn(4, GAN.latent))
    assert len(graphs) == 1
    single = COMPILED.compile(nn.Sequential(nn.Linear(3, 2)))
    single(torch.randn(4, 3))
    assert ([*single.state_dict()], len(graphs)) == (["0.weight", "0.bias"], 2)
    assert not PROGRESSIVE_GAN.compiles, "a gradient of a gradient"


def test_a_network_that_ranks_train_is_compiled_a_bucket_at_a_time(
    graphs: list[torch.fx.GraphModule], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be reduced before the whole backward pass has ended."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    try:
        layers = (nn.Linear(600, 600) for _ in range(3))  # of more than 1 MiB each
        spread = DistributedDataParallel(COMPILED.compile(nn.Sequential(*layers)), bucket_cap_mb=1)
        spread(torch.randn(4, 600)).sum().backward()
        time.sleep(0.2)  # gloo's thread needs the interpreter to forget its work, and the group's end waits for it
    finally:
        distributed.destroy_process_group()
    assert len(graphs) == 3
    assert all(parameter.grad is not None for parameter in spread.parameters())
