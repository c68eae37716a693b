"""Members of the layers that another package adds, used from the command line in the place of a real target."""

import hashlib
import json
from typing import Any

import pytest

from suite.process_identity import boot_id
from suite.userland import MANIFEST
from tests.extensions.conftest import REPOSITORY, Package
from tests.extensions.test_worker import example
from tests.own_directories import held_in


@pytest.fixture
def package(package: Package) -> Package:
    """The package, with a home of the suite's that has an image which holds nothing."""
    digest = hashlib.sha256(b"").hexdigest()
    tree = package.place / "home/images" / digest[:12] / "tree"
    (tree / MANIFEST).parent.mkdir(parents=True)
    (tree / MANIFEST).touch()
    image = {"digest": digest, "variant": "cpu", "recipe_sha256": "", "created_at": "2026", "base": "", "files": {}}
    (tree.parent / "image.json").write_text(json.dumps(image))
    # The image has no kernel to try KVM with.
    kvm = {"usable": False, "reason": "not tried", "evidence": "the image's kernel", "boot_id": boot_id(), "took_s": 0}
    (package.place / "home/cache").mkdir()
    (package.place / "home/cache/kvm.json").write_text(json.dumps(kvm))
    (package.place / "in_place.py").write_text(IN_PLACE)
    return package


def run(package: Package, *words: str) -> list[dict[str, Any]]:
    """Measure a probe and return the records of its trials."""
    out = package.place / "run"
    probe = ("--scenario", "probe", "--probe", "syscall", "--profile", "smoke", "--memory", "1G", "--isa", "native")
    # Other tests may measure at the same time, and nothing here depends on how fast it is.
    ended = package.bench("run", *probe, "--concurrent", "--out", str(out), *words)
    records = [json.loads(path.read_text()) for path in sorted(out.glob("trials/*.json"))]
    assert ended.returncode == 0, ended.stderr + str([record["outcome"] for record in records])
    return records


# Both the toy engine and the toy provider run commands right here, and say that the memory is as it should be.
IN_PLACE = """
import os, runpy, sys

def argv(memory_bytes):
    return [sys.executable, "-m", "in_place", str(memory_bytes)]

if __name__ == "__main__":
    _, memory_bytes, *words = sys.argv
    if "worker" not in words:
        os.execvp(words[0], words)
    sys.argv[1:] = words[words.index("worker") + 1:]
    os.environ.update(word.split("=", 1) for word in words if "=" in word and not word.startswith("PYTHONPATH"))
    import worker.environment
    worker.environment.memory = lambda: (int(memory_bytes), None)
    runpy.run_module("worker", run_name="__main__")
"""

ENGINE = """
from in_place import argv
from provisioning.engines.base import ContainerEngine

class Toy(ContainerEngine):
    name, rootfs, commands_are_children = "toy", "directory", True

    def version(self, node):
        return "1.0"

    def host_network(self, namespace):
        return "host"

    def begin(self, node, spec):
        self.sleeper = node.start(["sleep", "600"])

    def exec_argv(self, spec):
        return [*argv(spec.memory_bytes), *(["env", "TOY_SECCOMP=off"] if not spec.seccomp else [])]

    def main_pid(self, node, name):
        return self.sleeper.popen.pid

    def remove_local(self, name):
        self.sleeper.kill()

    def removal(self, name): ...

    def remove(self, node, name): ...

MEMBER = Toy()
"""

OF_GVISOR = """
from in_place import argv
from provisioning.engines.gvisor import Gvisor

class Toy(Gvisor):
    name, program = "toy", "toy-runsc"
    started = []

    def version(self, node):
        return "1.0"

    def platform(self, node):
        return self.chosen or "ptrace"

    def begin(self, node, spec):
        self.started.append(node.start(["sleep", "600"]))

    def exec_argv(self, spec):
        return argv(spec.memory_bytes)

    def main_pid(self, node, name):
        return self.started[-1].popen.pid

    def remove_local(self, name):
        self.started[-1].kill()

MEMBER = Toy()
"""

WITH_AN_OPTION = """
from suite.request.option import OptionGroup, Text, about

class ToyOptions(OptionGroup):
    \"\"\"Container engine toy.\"\"\"

    toy_speed: Text | None = about(None, "Speed of the toy: slow or fast.")

class Toy(ContainerEngine):
    options = ToyOptions

    def configured(self, given):
        self.version = lambda node: f"1.0 {given['toy_speed']}"
        return self
"""

PROVIDER = f"""
import in_place
{example("A machine provider")}
Toy.wrap = lambda self, spec, words: [*in_place.argv(spec.envelope.memory_bytes), *words]
"""

CLOUD = """
from pathlib import Path
from provisioning.clouds.base import Cloud, CloudOptions
from suite.request.option import Text, about

class ToyOptions(CloudOptions):
    toy_colour: Text = about(..., "Colour of the machine.")

class Toy(Cloud):
    options, targets, ready_within = ToyOptions, ("vm",), "2s"

    def look_up(self, sdk, options):
        return {"colour": options.toy_colour}, ("it is a toy",)

    def make(self, sdk, name, body, user_data):
        Path(name).write_text(body["colour"])
        yield "built", "cast"
        return "0.0.0.0"

    def state(self, sdk, name):
        return Path(name).read_text()

    def remove(self, sdk, name):
        Path("removed").write_text(Path(name).read_text())
        Path(name).unlink()

MEMBER = Toy()
"""

TIMER = """
from provisioning.timers.base import Timer

class Toy(Timer):
    kind = "toy"
    missing = asleep = install = remove = installed = lambda self, *_: None

    def render(self, job):
        return {"toy": job.schedule.cron}
"""

SITE = example("A site")

ABLATION = """
from suite.job.ablations import Ablation
from suite.job.properties import Properties

MEMBER = Ablation(
    "the network of the node, and huge pages",
    "network of the node, huge pages on",
    ("container",),
    Properties(host_network=True, huge_pages=True),
)
"""


def test_container_engines_of_another_package_are_used_as_that_of_the_run_and_as_an_ablation(package: Package) -> None:
    package.add("virtbench.engines", "toy", ENGINE)
    package.add("virtbench.engines", "twin", ENGINE.replace('"toy"', '"twin"'))
    records = run(package, "--target", "container", "--engine", "toy", "--engine", "twin")
    names = {record["ablation"]: record["environment"]["target"]["container_engine"]["name"] for record in records}
    assert names == {None: "toy", "twin": "twin"}
    (record,) = (record for record in records if record["ablation"] is None)
    assert (record["outcome"]["status"], record["job"]["layers"]["engine"]) == ("ok", "toy")
    assert record["environment"]["target"]["container_engine"] == {
        "name": "toy", "version": "1.0", "network": "none", "rootfs": "directory", "runtime": None,
            "kernel": None, "platform": None, "seccomp_sha256": None,
    }  # fmt: skip
    assert not held_in(package.place / "home/ledger"), "the ledger's entry is gone, by way of the registry"


def test_an_engine_of_another_package_that_inherits_from_gvisors_takes_one_file(package: Package) -> None:
    package.add("virtbench.engines", "toy", OF_GVISOR)
    (record,) = run(package, "--target", "container", "--engine", "toy")
    engine = record["environment"]["target"]["container_engine"]
    assert (engine["name"], engine["platform"], record["substitutes"]) == ("toy", "ptrace", ["platform:ptrace"])
    refused = package.bench("run", "--target", "container", "--engine", "toy", "--ablate", "seccomp")
    assert (refused.returncode, "gVisor cannot switch" in refused.stderr) == (2, True)


def test_a_local_engine_with_an_option_of_its_own_is_no_cluster(package: Package) -> None:
    package.add("virtbench.engines", "toy", ENGINE.replace("class Toy(ContainerEngine):", WITH_AN_OPTION))
    # A cluster is told how many CPUs, and chooses which.
    (record,) = run(package, "--target", "container", "--engine", "toy", "--toy-speed", "fast", "--cpus", "0,1")
    assert record["environment"]["target"]["container_engine"]["version"] == "1.0 fast"
    assert record["job"]["options"] == {"toy_speed": "fast"}
    refused = package.bench("run", "--target", "container", "--engine", "runc", "--toy-speed", "fast")
    assert (refused.returncode, "would change nothing" in refused.stderr) == (2, True)


def test_a_cloud_of_another_package_with_an_option_of_its_own_is_used(package: Package) -> None:
    """Nothing answers by SSH at its address, so that the machine is removed at the end."""
    package.add("virtbench.clouds", "toy", CLOUD)
    cloud = {"auth_type": "none", "baremetal_endpoint_override": "http://127.0.0.1:9"}
    (package.place / "clouds.yaml").write_text(json.dumps({"clouds": {"vb": cloud}}))
    up = ("machines", "up", "--from", "toy", "--cloud", "vb")
    assert "--from toy needs --toy-colour" in package.bench(*up).stderr
    ended = package.bench(*up, "--toy-colour", "red")
    assert (ended.returncode, (package.place / "removed").read_text()) == (1, "red")
    assert "unfair: it is a toy" in ended.stderr
    assert "was not ready within 2 s: not booted: " in ended.stderr
    assert [path.name for path in package.place.glob("virtbench-*")] == []


def test_a_machine_provider_of_another_package_is_used(package: Package) -> None:
    """The toy hands back this machine, so that only the mechanism is tested."""
    package.add("virtbench.machines", "toy", PROVIDER, "TOY")
    (record,) = run(package, "--target", "vm", "--provider", "toy")
    assert (record["outcome"]["status"], record["job"]["layers"]["provider"]) == ("ok", "toy")
    assert record["substitutes"] == ["machine:none"]
    assert record["environment"]["target"]["accelerator"] == "kvm"


def test_a_timer_of_another_package_is_used(package: Package) -> None:
    package.add("virtbench.timers", "toy", TIMER, "Toy")
    shown = package.bench("sweep", "schedule", "smoke", "--every", "6h", "--with", "toy", "--dry-run")
    assert "0 */6 * * *" in shown.stdout, shown.stderr
    assert "by toy; nothing is installed" in shown.stdout


def test_a_site_of_another_package_carries_targets_in_directories_that_pretend_to_be_machines(package: Package) -> None:
    package.add("virtbench.engines", "toy", ENGINE)
    package.add("virtbench.machines", "cast", PROVIDER.replace('"toy"', '"cast"'), "TOY")
    # The image of these tests has no program that bare metal starts in it.
    package.add("virtbench.sites", "shelf", SITE.replace('"bare-metal"', '"vm"'), "Shelf")
    for name in ("one", "two"):
        (package.place / name).mkdir()
    there = ("--site", "shelf", "--engine", "toy", "--provider", "cast", "--target", "vm", "--target", "container")
    checks = {check["name"]: check for check in json.loads(package.bench("doctor", "--json").stdout)["checks"]}
    assert (checks["shelf"]["kind"], checks["shelf"]["evidence"]) == ("site", "one, two")
    # A dry run opens nothing, and what one of the places does not have is refused with its name.
    dry = package.bench("run", *there, "--profile", "smoke", "--memory", "1G", "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    assert json.loads(dry.stdout)["plan"]["targets"] == ["vm", "container"]
    large = package.bench("run", *there, "--profile", "smoke", "--memory", "3G", "--dry-run")
    assert (large.returncode, "on two: 3.0 GiB of memory asked for" in large.stderr) == (2, True)
    assert [path.name for path in package.place.glob("*/opened*")] == []
    records = run(package, *there, "--ablate", "seccomp")
    opened = {path.parent.name: path.read_text() for path in package.place.glob("*/opened")}
    assert opened in ({"one": "vm None", "two": f"container {ablation}"} for ablation in (None, "seccomp"))
    arms = {(record["target"], record["ablation"]) for record in records}
    assert arms == {("vm", None), ("container", None), ("container", "seccomp")}
    refused = package.bench("run", *there, "--scenario", "probe", "--probe", "disk", "--memory", "1G")
    assert (refused.returncode, "a shelf has no room to write" in refused.stderr) == (2, True)
    elsewhere = package.bench("run", *there, "--scenario", "serve")
    assert (elsewhere.returncode, "the other options lead to the site lab" in elsewhere.stderr) == (2, True)


def test_an_ablation_of_another_package_is_used(package: Package) -> None:
    package.add("virtbench.engines", "toy", ENGINE)
    package.add("virtbench.ablations", "toy-open", ABLATION)
    switched, usual = run(package, "--target", "container", "--engine", "toy", "--ablate", "toy-open")
    assert (switched["ablation"], usual["ablation"]) == ("toy-open", None)
    inside = [each["environment"]["target"] for each in (switched, usual)]
    assert [each["container_engine"]["network"] for each in inside] == ["host", "none"]
    assert ["hugetlb" in each["allocator"] for each in inside] == [True, False]


def test_an_extension_that_fails_to_load_is_told_and_disturbs_nothing(package: Package) -> None:
    package.add("virtbench.engines", "torn", "raise RuntimeError('torn')")
    package.add("virtbench.engines", "toy", ENGINE)
    checks = {each["name"]: each for each in json.loads(package.bench("doctor", "--json").stdout)["checks"]}
    torn = checks["container engine torn"]
    assert (torn["kind"], torn["usable"]) == ("extension", False)
    assert torn["reason"] == "the container engine 'torn' cannot be loaded: RuntimeError: torn"
    assert "uninstall" in torn["remedy"]
    assert checks["toy"]["usable"]
    refused = package.bench("run", "--target", "container", "--engine", "torn")
    assert (refused.returncode, "cannot be loaded: RuntimeError: torn" in refused.stderr) == (2, True)


def test_a_package_with_unreadable_entry_points_is_told_and_disturbs_nothing(package: Package) -> None:
    broken = package.place / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_text("[console_scripts]\na line without a value\n")
    package.add("virtbench.engines", "toy", ENGINE)
    # As ``bench`` is installed: whoever imports pydantic before it lets it look for plugins.
    examined = package.bench("doctor", "--json", program="cli")
    checks = {each["name"]: each for each in json.loads(examined.stdout)["checks"]}
    assert checks["toy"]["usable"]
    told = checks["broken-1.0.dist-info"]
    assert (told["kind"], told["usable"], "cannot be read" in told["reason"]) == ("extension", False, True)
    run_directory = str(REPOSITORY / "tests/samples/runs/synthetic-podman")
    shown = package.bench("compare", run_directory, "--plots", "plots", program="cli")
    assert shown.returncode == 0, shown.stderr
    refused = package.bench("run", "--target", "container", "--engine", "other", program="cli")
    assert (refused.returncode, f"{broken}/entry_points.txt cannot be read" in refused.stderr) == (2, True)
