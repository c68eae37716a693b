"""The load that a request gives a generator that is served."""

from suite.job.profiles import Profile
from suite.job.serving import LOADS, SERVE, Serving, parse_rates
from suite.job.sharing import sizes_of
from suite.request.request import RunRequest


def serving_of(request: RunRequest, profile: Profile, model: str) -> Serving | None:
    """Return the load of a model and the shape of its images; None in other scenarios. Raises RequestError."""
    if request.scenario != SERVE:
        return None
    names = ("image_px", "channels")
    changed = {name: int(value) for name in names if (value := request.value(name)) is not None}
    images, asked, load = sizes_of(profile, model, changed), request.serving, LOADS[profile.name]
    return Serving(
        requests=asked.requests or load.requests,
        rates=parse_rates(asked.rates) if asked.rates else load.rates,
        clients=asked.clients or load.clients,
        image_px=images.image_px,
        channels=images.channels or 3,
    )
