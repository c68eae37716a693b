"""An image of the user's own: where it comes from, what is refused, what is added, and what it must hold."""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli import main
from provisioning.engines.runc import PROFILE
from provisioning.images import own, trial_imports
from provisioning.images.image import RECIPES, Image, find, prune
from provisioning.images.needs import MODULES, PROGRAMS, check
from provisioning.images.own import ADDED, complete, find_source, refuse_unsafe
from provisioning.images.tree import BUILDERS, MADE
from provisioning.layers.userland import FIRST_USER
from provisioning.paths import RECIPE
from suite.errors import RequestError
from suite.interfaces import Completed
from tests.provisioning.conftest import FakeNode, MakeImage, make

PODMAN = BUILDERS[0]
OWN = Path("/the/suites/own/tree")
EVERYTHING = {
    program: program if program.startswith("/") else f"/usr/bin/{program}"
    for programs in PROGRAMS.values()
    for program in programs
}
IMPORTED = {"version": [3, 12], "failed": {}}


class Inside(FakeNode):
    """Answers what runs in a tree: which programs are there, and what its Python says."""

    def __init__(self, programs: dict[str, str], said: object = IMPORTED) -> None:
        super().__init__()
        self._programs, self._said = programs, said if isinstance(said, str) else json.dumps(said)

    def run(self, argv: Any, **more: Any) -> Completed:
        super().run(argv, **more)
        if "which" in argv:
            wanted = argv[argv.index("which") + 1 :]
            found = [self._programs[each] for each in wanted if each in self._programs]
            return Completed(int(len(found) < len(wanted)), "\n".join(found), "")
        return Completed(0, f"a warning\n{self._said}\n", "Exec format error")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the places that every image has."""
    root = tmp_path / "tree"
    for place in ("usr/bin", "usr/lib", "etc", "var/lib", "usr/share/containers", "dev", "tmp"):
        (root / place).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "lib").symlink_to("usr/lib")
    return root


def refusal(work: Callable[..., object], *given: object, **more: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        work(*given, **more)
    return caught.value


# ---- what it must hold


def test_modules_are_imported_as_the_user_that_jobs_have(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    node = Inside(EVERYTHING)
    check(node, tree, OWN, "mine")
    words = node.ran[-1]
    assert words.index(f"--userspec={FIRST_USER}:{FIRST_USER}") < words.index("/usr/bin/python3")
    assert words.index(str(OWN)) < words.index(str(tree)), "what gives root away is the suite's own"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check(node, tree, OWN, "mine")
    assert "--unshare-all" in node.ran[-1]


def test_the_program_in_the_tree_tells_the_version_and_every_failure(tmp_path: Path) -> None:
    (tmp_path / "torn.py").write_text("def works(): pass\ndef fails(): raise OSError('no library')\n")
    names = ["json", "no_such_module", "torn:works", "torn:fails"]
    argv, program = [sys.executable, "-", *names], Path(trial_imports.__file__).read_bytes()
    said = json.loads(subprocess.check_output(argv, input=program, env={"PYTHONPATH": str(tmp_path)}))
    assert said["version"] == list(sys.version_info[:2])
    assert said["failed"] == {
        "no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
        "torn:fails": "OSError: no library",
    }


def test_the_suites_own_recipe_installs_what_an_image_must_hold() -> None:
    recipe = (RECIPE / "Dockerfile").read_text().partition("\nFROM ")[2].partition("\nFROM ")[2]
    installed = set(re.findall(r"[a-z0-9.-]+", recipe.partition("--no-install-recommends")[2].partition("&&")[0]))
    essential = {"coreutils", "dash", "hostname"}  # of every Debian
    assert set(PROGRAMS) - essential <= installed
    assert set(MODULES) <= {line.partition("==")[0] for line in (RECIPE / "requirements.txt").read_text().splitlines()}


# ---- what is refused, and what is added


@pytest.mark.parametrize("place", ["etc", "var", "var/lib", "opt", "mnt", "tmp", "usr/lib"])
def test_a_link_where_the_suite_would_write_is_refused_and_not_followed(tree: Path, tmp_path: Path, place: str) -> None:
    target = tree / place
    if target.is_dir():
        target.rename(tmp_path / "moved")
    (tmp_path / "of-the-host").mkdir()
    target.symlink_to(tmp_path / "of-the-host")
    assert place in refusal(refuse_unsafe, tree, "mine").message
    assert not list((tmp_path / "of-the-host").iterdir())


def test_a_tree_with_ordinary_places_is_taken_and_one_that_is_not_merged_with_usr_refused(tree: Path) -> None:
    (tree / "var/run").symlink_to("/run")
    (tree / "usr/bin/python").symlink_to("/elsewhere")
    refuse_unsafe(tree, "mine")
    (tree / "lib").unlink()
    (tree / "lib").mkdir()
    assert "a directory /lib, and no link" in refusal(refuse_unsafe, tree, "mine").message
    (tree / "lib").rmdir()
    (tree / "lib").symlink_to("/usr/lib")
    assert "a directory /lib, and no link" in refusal(refuse_unsafe, tree, "mine").message, "that is the host's"


def test_devices_and_pipes_are_named_and_there_is_an_end_to_it(tree: Path) -> None:
    for number in range(7):
        os.mkfifo(tree / f"usr/pipe{number}")
    error = refusal(refuse_unsafe, tree, "mine")
    assert error.message.count("is a device, a pipe or a socket") == own.MOST_NAMED
    assert error.message.endswith("and 2 more")


@pytest.fixture
def suite_tree(tmp_path: Path) -> Path:
    root = tmp_path / "suite"
    own = ("worker/main.py", "manifest.tsv", "requirements", "worker/__pycache__/main.cpython-311.pyc")
    files = ("boot/vmlinuz", "usr/lib/modules/6.1/modules.dep", "usr/bin/busybox", "etc/inittab", PROFILE)
    return make(root, {name: f"the suite's {name}" for name in (*files, *(f"opt/virtbench/{each}" for each in own))})


def test_kernel_start_up_and_worker_replace_what_was_there(tree: Path, suite_tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    old = ("usr/lib/modules/5.0/modules.dep", "opt/virtbench/worker/old.py", "boot/grub")
    make(tree, {**dict.fromkeys(old, "old"), PROFILE: "all is allowed"})
    (tree / "opt/virtbench/manifest.tsv").symlink_to(outside)
    (tree / "etc/inittab").symlink_to(outside)
    (tree / "usr/bin/busybox").symlink_to(outside)
    complete(tree, suite_tree)
    assert (tree / PROFILE).read_text() == f"the suite's {PROFILE}"
    found = {
        str(path.relative_to(tree))
        for place in ADDED
        for path in [tree / place, *(tree / place).rglob("*")]
        if path.is_file()
    }
    assert found == {
        *("boot/vmlinuz", "usr/lib/modules/6.1/modules.dep", "usr/bin/busybox", "etc/inittab", PROFILE),
        "opt/virtbench/worker/main.py",
    }
    assert (tree / "etc/inittab").read_text() == "the suite's etc/inittab"
    assert outside.read_text() == "mine"
    assert all((tree / place).is_dir() for place in MADE)


class Compiling(FakeNode):
    """Plays a Python that compiles the worker, and more."""

    def run(self, argv: Any, **more: Any) -> Completed:
        scratch = Path(argv[argv.index("--bind") + 1])
        compiled = (f"worker/__pycache__/{name}.cpython-312.pyc" for name in ("main", "other"))
        make(scratch, {**dict.fromkeys(compiled, "bytecode"), "worker/main.py": "torn"})
        (scratch / "worker/__pycache__/main.cpython-313.pyc").symlink_to("/etc/passwd")
        (scratch / "manifest.tsv").symlink_to("/etc/passwd")
        return super().run(argv, **more)


def test_of_what_the_images_python_writes_the_bytecode_of_the_worker_alone_is_taken(
    tree: Path, suite_tree: Path, tmp_path: Path
) -> None:
    complete(tree, suite_tree)
    own.compile_worker(Compiling(), tree, tmp_path / "scratch")  # type: ignore[arg-type]
    files = {str(path.relative_to(tree / "opt")) for path in (tree / "opt").rglob("*") if not path.is_dir()}
    assert files == {"virtbench/worker/main.py", "virtbench/worker/__pycache__/main.cpython-312.pyc"}
    assert (tree / "opt/virtbench/worker/main.py").read_text() == "the suite's opt/virtbench/worker/main.py"
    assert not (tmp_path / "scratch").exists()


# ---- where it comes from


def engine(*, loaded: str = "Loaded image: localhost/mine:latest\n", **failures: Completed) -> FakeNode:
    answers: dict[tuple[str, ...], Completed]
    answers = {("podman", "load"): Completed(0, loaded, ""), ("podman", "image"): Completed(0, "sha256:abc\n", "")}
    return FakeNode(answers | {("podman", name): answer for name, answer in failures.items()})


def source(path: Path | str, node: FakeNode, **more: bool) -> str:
    return find_source(node, PODMAN, str(path), lambda _: None, fresh=more.get("fresh", False))  # type: ignore[arg-type]


def test_an_archive_and_an_oci_layout_are_loaded_unless_they_hold_several_images(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        archive.add(__file__, "manifest.json")
    make(tmp_path, {"layout/oci-layout": "{}"})
    for name in ("image.tar", "layout"):
        node = engine()
        assert source(tmp_path / name, node) == "abc"
        assert node.ran[0] == ["podman", "load", "--input", str(tmp_path / name)]
        assert "localhost/mine:latest" in node.ran[1]
        several = engine(loaded="Loaded image: localhost/one:1\nLoaded image: localhost/two:2\n")
        error = refusal(source, tmp_path / name, several)
        assert "holds 2 images: localhost/one:1, localhost/two:2" in error.message
        assert "--from localhost/one:1" in str(error.remedy)


@pytest.mark.parametrize("name", [*RECIPES, "gpu.Dockerfile"])
def test_a_recipe_is_built_by_its_path_or_that_of_its_directory(tmp_path: Path, name: str) -> None:
    assert "is no archive of an image" in refusal(source, tmp_path, engine()).message
    (tmp_path / name).write_text("FROM scratch\n")
    for given in (*((tmp_path,) if name in RECIPES else ()), tmp_path / name):
        node = engine()
        assert source(given, node, fresh=True) == "abc"
        (argv,) = (argv for argv in node.ran if argv[:2] == ["podman", "build"])
        assert argv[-4:] == ["--file", str(tmp_path / name), "--", str(tmp_path)]
        assert "--no-cache" in argv


def test_a_failing_step_is_shown_with_its_output_and_the_cause_of_a_long_error(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nRUN make\n")
    steps = "STEP 1/2: FROM scratch\nSTEP 2/2: RUN make\ncompiling\n"
    error = refusal(source, tmp_path, engine(build=Completed(2, steps, "no rule\nError: building at STEP: 2\n")))
    assert error.message.endswith("gives no image: Error: building at STEP: 2")
    assert error.output_tail == "STEP 2/2: RUN make\ncompiling\nno rule\nError: building at STEP: 2\n"
    assert error.remedy == "correct the step whose output is above"
    long = Completed(125, "", f"STEP 1/3\nError: committing {'x' * 900}: no space left on device\n")
    message = refusal(source, tmp_path, engine(build=long)).message
    assert "Error: committing" in message
    assert message.endswith("no space left on device")
    assert len(message) < 2 * own.MOST_SAID


def test_a_step_has_the_certificates_and_indexes_of_this_host(tmp_path: Path) -> None:
    certificates = make(tmp_path, {"own.crt": "of a proxy"}) / "own.crt"
    listed = f":env:.index-url='https://near/simple'\nglobal.cert='{certificates}'\nglobal.index-url='https://far'\n"
    listed += "global.extra-index-url='file:///opt/simple https://more/simple'\n"
    place = tmp_path / "place"
    place.mkdir()
    node = FakeNode({(sys.executable, "-m", "pip"): Completed(0, listed, "")})
    assert own.host_access(node, place) == ["--volume", f"{place}:/etc/xdg/pip:ro"]  # type: ignore[arg-type]
    assert (place / "certificates.crt").read_text() == "of a proxy"
    assert (place / "pip.conf").read_text().splitlines() == [
        "[global]",
        "index-url = https://near/simple",
        "extra-index-url = https://more/simple",
        "cert = /etc/xdg/pip/certificates.crt",
    ]


def test_the_suites_image_is_the_base_of_a_recipe_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_image: MakeImage
) -> None:
    suite_image = make_image()
    monkeypatch.setattr(own, "built", lambda _: suite_image)
    (tmp_path / "Dockerfile").write_text(f"FROM {own.BASE}\nRUN python3 -m pip install einops\n")
    name = f"{own.BASE}:{suite_image.digest[:12]}"
    node = engine()
    node.answers = {**node.answers, ("podman", "image", "inspect", "--", name): Completed(1, "", "")}
    assert source(tmp_path, node) == "abc"
    ran = [argv[1:] for argv in node.ran]
    assert ["load", "--input", str(suite_image.file("oci.tar"))] in ran
    assert ran.index(["tag", "localhost/mine:latest", name]) < ran.index(["tag", name, own.BASE])


def test_a_name_is_fetched_only_where_it_is_not_held() -> None:
    held, missing = engine(), engine()
    assert source("localhost/mine:latest", held) == "abc"
    assert "pull" not in [argv[1] for argv in held.ran]
    missing.answers = {**missing.answers, ("podman", "image", "inspect", "--", "mine"): Completed(1, "", "")}
    source("mine", missing)
    assert ["podman", "pull", "--quiet"] in [argv[:3] for argv in missing.ran]


@pytest.mark.parametrize("name", ["--privileged", "mine image", "a;b", ""])
def test_what_is_no_name_of_an_image_reaches_no_engine(name: str) -> None:
    node = engine()
    assert "is no name of an image" in refusal(source, name, node).message
    assert not node.ran


# ---- its name


def test_an_image_is_found_by_its_name_and_kept_with_it(make_image: MakeImage) -> None:
    def of(source: str, day: int) -> Image:
        image = make_image(f"2026-01-0{day}T00:00:00+00:00", f"{source} {day}", "own")
        image.source = source
        image.save()
        return image

    suite_image = make_image()
    old, new = of("/home/me/mine/Dockerfile", 2), of("/home/me/mine/Dockerfile", 3)
    archive, held = of("/home/me/image.tar", 4), of("localhost/mine:latest", 5)
    assert [find(name) for name in ("mine", "image.tar", "localhost/mine:latest")] == [new, archive, held]
    assert find(old.digest) == old
    assert find(None) == suite_image, "none of the user's own is used unless it is named"
    assert prune() == [old]
    assert CliRunner().invoke(main, ["image", "remove", "nobodys"]).exit_code == 2
    removed = CliRunner().invoke(main, ["image", "remove", archive.digest[:12]])
    assert removed.output == f"removed: {archive.digest[:12]}  image.tar  {archive.created_at}\n"
    assert not archive.directory.exists()
    listed = CliRunner().invoke(main, ["image", "list"]).output.splitlines()
    assert [line.split()[4:] for line in listed] == [["localhost/mine:latest"], ["mine"], []]
