"""Registries: their own members, those that other packages add, and those that fail to load."""

import signal
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from suite.errors import RequestError
from suite.registries import every_registry
from suite.registry import Registry, unreadable_packages
from suite.request import request

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
    for name in ("toys_of_the_suite", "toys_of_others", "torn_toys"):
        monkeypatch.delitem(sys.modules, name, raising=False)
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


@pytest.mark.parametrize("text", [f"[{GROUP}]\nkite\n".encode(), b"[a]\nx = \xff\n"])
def test_a_package_whose_entry_points_cannot_be_read_adds_none_and_is_named(
    text: bytes, registry: Registry, tmp_path: Path
) -> None:
    package = tmp_path / "broken-1.0.dist-info"
    package.mkdir()
    (package / "entry_points.txt").write_bytes(text)
    assert registry.names() == ("top", "hoop", "ball", "kite")
    assert f"{package}/entry_points.txt cannot be read: " in unreadable_packages()[str(package)]


def test_a_member_that_fails_to_load_disturbs_no_other_and_says_why(registry: Registry) -> None:
    assert registry.failures() == {"ball": "the toy 'ball' cannot be loaded: RuntimeError: torn"}
    with pytest.raises(RequestError, match="torn"):
        registry.get("ball")
    assert registry.get("kite") == "their kite"
    registry._places["doll"] = EntryPoint("doll", "no module at all", GROUP)
    assert set(registry.failures()) == {"ball", "doll"}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import sys; sys.exit('no licence')", "SystemExit: no licence"),
        ("import time; time.sleep(60)", "SlowImportError: it was not imported within 0.2 s"),
        ("try:\n import time; time.sleep(60)\nexcept Exception: pass", "SlowImportError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("print('x' *", "SyntaxError"),
    ],
)
def test_a_member_that_ends_hangs_or_recurses_takes_down_its_own_name_alone_and_is_tried_once(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str
) -> None:
    monkeypatch.setattr("suite.registry.LOADS_WITHIN_S", 0.2)
    (tmp_path / "torn_toys.py").write_text(source)
    before = signal.getsignal(signal.SIGALRM)
    assert why in registry.failures()["ball"]
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (before, (0.0, 0.0))
    (tmp_path / "torn_toys.py").write_text("BALL = 1")
    assert why in registry.failures()["ball"], "each command would wait for it several times"
    assert registry.get("kite") == "their kite"


def test_the_suites_own_members_have_no_limit_and_an_accident_is_not_kept(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.registry.LOADS_WITHIN_S", 0.05)
    (tmp_path / "toys_of_the_suite.py").write_text("import time; time.sleep(0.2); TOP = 'our top'")
    assert registry.get("top") == "our top"
    (tmp_path / "torn_toys.py").write_text("raise OSError(24, 'Too many open files')")
    assert "Too many open files" in registry.failures()["ball"]
    (tmp_path / "torn_toys.py").write_text("BALL = 'their ball'  # longer than before")
    assert registry.get("ball") == "their ball"


def test_the_traceback_of_a_member_is_shown_with_the_variable(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIRTBENCH_DEBUG", "1")
    registry.failures()
    shown = capsys.readouterr().err
    assert "torn_toys.py" in shown
    assert "RuntimeError: torn" in shown


def test_a_member_whose_options_are_no_model_takes_down_its_own_name_alone(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toys_of_others.py").write_text("class KITE: options = {'length': 5}")
    monkeypatch.setattr(request, "OWNERS", {"toy": registry})
    assert [name for name, _, owner in request._groups() if owner] == []
    with pytest.raises(RequestError, match="its options are not a model of options"):
        registry.get("kite")
    assert registry.get("top") == "our top"


@pytest.mark.parametrize("registry", every_registry(), ids=lambda registry: registry.group)
def test_every_member_of_the_suites_own_can_be_loaded_and_is_called_as_there(registry: Registry) -> None:
    assert [name for name in registry.own if registry.get(name) is None] == []
    places = [*registry.own.values()]
    own = [name for name, place in registry.own.items() if places.count(place) == 1]
    assert [getattr(registry.get(name), "name", name) for name in own] == own
    assert registry.failures() == {}
