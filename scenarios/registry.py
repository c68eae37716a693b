"""The scenarios by name. A new one is a file and a line here."""

from collections.abc import Callable

from scenarios.distributed import Distributed
from scenarios.probe import Probe
from scenarios.real import Real
from scenarios.shared import Shared
from scenarios.synthetic import Synthetic
from suite.errors import RequestError
from suite.interfaces import Scenario

ScenarioFactory = Callable[..., Scenario]
"""Takes the options of all scenarios by name, and uses its own: ``device``, ``devices``, ``parallel``; see each."""

SCENARIOS: dict[str, ScenarioFactory] = {
    "synthetic": Synthetic,
    "real": Real,
    "probe": Probe,
    "distributed": Distributed,
    "shared": Shared,
}


def get_scenario(name: str) -> ScenarioFactory:
    """Raises RequestError with the known names."""
    if name not in SCENARIOS:
        raise RequestError(f"no scenario {name!r}", remedy=f"choose one of {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
