"""The scenarios by name. A new one is a file and a line here."""

from collections.abc import Callable

from scenarios.synthetic import Synthetic
from suite.errors import RequestError
from suite.interfaces import Scenario

ScenarioFactory = Callable[..., Scenario]
"""Takes ``device``, ``devices`` and ``parallel`` by name."""

SCENARIOS: dict[str, ScenarioFactory] = {"synthetic": Synthetic}


def get_scenario(name: str) -> ScenarioFactory:
    """Raises RequestError with the known names."""
    if name not in SCENARIOS:
        raise RequestError(f"no scenario {name!r}", remedy=f"choose one of {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
