"""The version of the suite changes with its code, and is computed once in a process."""

from pathlib import Path

from suite import __version__
from suite.version import code_digest, suite_version


def write(place: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


CODE = {"cli.py": "main", "suite/plan.py": "plan", "analysis/report/claims.toml": "claims"}


def test_the_digest_is_of_names_and_contents_of_the_code_alone(tmp_path: Path) -> None:
    digest = code_digest(write(tmp_path / "a", CODE))
    beside = {"numpy/core.py": "another package", "suite/__pycache__/plan.pyc": "compiled", "suite/notes.txt": "words"}
    assert code_digest(write(tmp_path / "b", {**CODE, **beside})) == digest
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans/claims.toml").write_text("claims")
    linked = write(tmp_path / "c", {name: text for name, text in CODE.items() if "claims" not in name})
    (linked / "analysis").mkdir()
    (linked / "analysis/report").symlink_to(tmp_path / "plans")
    assert code_digest(linked) == digest, "what a checkout has as a link is a directory of a wheel"
    for number, change in enumerate(({"suite/plan.py": "other"}, {"worker/step.py": ""}, {"suite/plan2.py": "plan"})):
        assert code_digest(write(tmp_path / f"changed-{number}", {**CODE, **change})) != digest


def test_the_version_has_the_number_and_the_digest() -> None:
    number, _, digest = suite_version().partition("+")
    assert (number, digest) == (__version__, code_digest(Path(__file__).parents[2]))
    assert suite_version.cache_info().currsize == 1
