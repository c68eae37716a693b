"""Registries: their own members, those that other packages add, and those that fail to load."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from suite.errors import RequestError
from suite.registries import every_registry
from suite.registry import Registry

GROUP = "virtbench.toys"
OWN = {"top": "toys_of_the_suite:TOP", "hoop": "toys_of_the_suite:HOOP"}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry to which an installed package adds a kite, a torn one, and another top."""
    (tmp_path / "toys_of_the_suite.py").write_text("TOP, HOOP = 'our top', 'our hoop'\n")
    (tmp_path / "toys_of_others.py").write_text("KITE, TOP = 'their kite', 'their top'\n")
    (tmp_path / "torn_toys.py").write_text("raise RuntimeError('torn')\n")
    package = tmp_path / "toys-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        f"[{GROUP}]\nkite = toys_of_others:KITE\ntop = toys_of_others:TOP\nball = torn_toys:BALL\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return Registry(GROUP, "toy", OWN)


def test_the_suites_own_members_come_first_in_their_order(registry: Registry) -> None:
    assert registry.names() == ("top", "hoop", "ball", "kite") == tuple(registry)
    assert "kite" in registry
    assert "doll" not in registry
    assert [registry.get(name) for name in ("top", "hoop", "kite")] == ["our top", "our hoop", "their kite"]
    assert registry.added() == ("ball", "kite"), "their top does not replace the suite's own"


def test_an_unknown_name_is_refused_with_the_nearest_one(registry: Registry) -> None:
    with pytest.raises(RequestError, match="no toy 'kit'") as refused:
        registry.get("kit")
    assert "did you mean kite?" in str(refused.value.remedy)


def test_a_member_that_fails_to_load_disturbs_no_other_and_says_why(registry: Registry) -> None:
    assert registry.failures() == {"ball": "the toy 'ball' cannot be loaded: RuntimeError: torn"}
    with pytest.raises(RequestError, match="torn"):
        registry.get("ball")
    assert registry.get("kite") == "their kite"
    registry._places["doll"] = EntryPoint("doll", "no module at all", GROUP)
    assert set(registry.failures()) == {"ball", "doll"}


@pytest.mark.parametrize("registry", every_registry(), ids=lambda registry: registry.group)
def test_every_member_of_the_suites_own_can_be_loaded_and_is_called_as_there(registry: Registry) -> None:
    assert [name for name in registry.own if registry.get(name) is None] == []
    places = [*registry.own.values()]
    own = [name for name, place in registry.own.items() if places.count(place) == 1]
    assert [getattr(registry.get(name), "name", name) for name in own] == own
    assert registry.failures() == {}
