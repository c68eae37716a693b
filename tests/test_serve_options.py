"""From the options of a generator that is served to its plan."""

from typing import Any

from scenarios.serve import Serve
from suite.job.distributed import DistributedJob
from suite.job.lab import LabSpec
from suite.job.profiles import PROFILES, Profile
from suite.job.serving import LOADS, Serving
from suite.registries import WORKLOADS
from suite.request.request import RunRequest


def request(**options: Any) -> RunRequest:
    return RunRequest.of({"scenario": "serve", **options})


def serving_of(asked: RunRequest, profile: Profile, model: str) -> Serving:
    serving = Serve().part(asked, profile, model)["serving"]
    assert isinstance(serving, Serving)
    return serving


def test_the_load_is_that_of_the_profile_unless_it_is_given() -> None:
    for profile, load_of_profile in LOADS.items():
        serving = serving_of(request(profile=profile), PROFILES[profile], "gan")
        assert {name: getattr(serving, name) for name in type(load_of_profile).model_fields} == dict(load_of_profile)
        assert (serving.image_px, serving.channels) == (28, 1)
    own = serving_of(
        request(requests=7, rates="5,0.5", clients=3, image_px=64, channels="1"), PROFILES["smoke"], "dcgan"
    )
    assert (own.requests, own.rates, own.clients, own.image_px, own.channels) == (7, (5.0, 0.5), 3, 64, 1)


def test_every_profile_has_a_load() -> None:
    assert set(LOADS) == {name for name, profile in PROFILES.items() if not profile.settle_s}


def test_a_server_and_a_client_train_nothing_together() -> None:
    assert (Serve().ranks(request()), Serve().strategy(request())) == ((1, 1), None)
    joined = DistributedJob(workers=1, servers=1, network="overlay", lab=LabSpec(nodes=2))
    assert joined.roles == ("server", "client")


def test_generators_are_served_and_nothing_else() -> None:
    assert request().models == ("gan",)
    served = [name for name in WORKLOADS.own if WORKLOADS.get(name).generates]
    assert served == ["gan", "gan-published", "dcgan", "dcgan-published", "vae", "progressive-gan", "transformer"]
    for name in served:
        Serve().check_model(request(model=served), name)
