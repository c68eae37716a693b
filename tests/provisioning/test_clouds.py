"""Machines for hire: openstacksdk itself against services that answer as recorded, and an ssh that answers as told."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from commands.hire import HiredOutput
from commands.run.prepare import Ready
from provisioning import ledger
from provisioning.clouds import base, hire, ironic
from provisioning.clouds.base import CloudError
from provisioning.clouds.nova import _unfair
from provisioning.remote.discovery import DiscoveredMachine, Discovery
from suite.errors import RequestError
from suite.inventory import Inventory, read_inventory
from suite.untrusted.terminal import keep_secret
from tests import sites
from tests.clock import Clock
from tests.commands.conftest import ended_well
from tests.provisioning.openstack import PASSWORD, TOKEN, Answer, OpenStack, of_ironic, openstack, refused

# What openstacksdk says to its own developers; Python shows it to nobody else.
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")

FLAVOR, IMAGE, NETWORK = "11111111-0000-0000-0000-000000000001", "2222", "3333"
NOVA = (
    *("up", "--from", "nova", "--cloud", "vb", "--image", "debian"),
    *("--flavor", "b2", "--network", "lab", "--key", "me"),
)
ADDRESSES = {"lab": [{"version": 4, "addr": "192.0.2.7"}]}
ACTIVE = {"status": "ACTIVE", "OS-EXT-STS:task_state": None, "addresses": ADDRESSES}
SPAWNING = {"OS-EXT-STS:task_state": "spawning"}
FAIR = {"hw:cpu_policy": "dedicated", "hw:mem_page_size": "1GB"}
SSH = """echo "$@" >> ssh.log
answer=$(head -n 1 ssh.answers 2>/dev/null)
sed -i 1d ssh.answers 2>/dev/null
case "$answer" in Please*) echo "$answer"; exit 142;; esac
[ -z "$answer" ] || { echo "$answer" >&2; exit 255; }
"""


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[[str, str], Path]) -> Iterator[OpenStack]:
    """A cloud with a flavor, an image, a network, a key and a node; the directory of the test is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OS_CLIENT_CONFIG_FILE", raising=False)
    monkeypatch.setattr("openstack.config.loader.CONFIG_FILES", [str(tmp_path / "clouds.yaml")])
    program("ssh", SSH)
    # Time goes on by the looks alone; and openstacksdk has its table of services copied whole thirty times a request.
    for module in (base, hire, ironic):
        monkeypatch.setattr(module, "time", Clock(tick_s=0.001))
    monkeypatch.setattr("os_service_types.service_types.copy", SimpleNamespace(deepcopy=lambda table: table))
    monkeypatch.setattr(cli, "_end_in_order_on_signals", lambda: None)
    with openstack(tmp_path) as services:
        services.images[IMAGE] = {"id": IMAGE, "name": "debian", "status": "active"}
        services.flavors[FLAVOR] = {"id": FLAVOR, "name": "b2", "vcpus": 2, "ram": 2048, "disk": 0}
        services.networks[NETWORK] = {"id": NETWORK, "name": "lab"}
        services.keypairs["me"] = {"name": "me", "fingerprint": "x"}
        services.specs.update(FAIR)
        services.course[:] = [{}, SPAWNING, ACTIVE]
        yield services


def machines(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["machines", *words], prog_name="bench")


def names(cloud: OpenStack) -> list[str]:
    return [str(server["name"]) for server in cloud.servers.values()]


def hired(cloud: OpenStack) -> str:
    """Hire a machine of Nova, and return its name."""
    assert machines(*NOVA).exit_code == 0
    (name,) = names(cloud)
    return name


def once(cloud: OpenStack, method: str, pattern: str, answer: Answer, times: int = 1) -> None:
    """Let a request be answered like this, so many times."""
    answers = [answer] * times
    cloud.instead.append((method, pattern, lambda _: answers.pop() if answers else None))


def failed(cloud: OpenStack, *words: str, code: int = 1) -> str:
    """Return the message of a refusal or a failure, after which the cloud has nothing and the ledger no entry."""
    done = machines(*words)
    assert done.exit_code == code, done.output
    left = [cloud.servers, cloud.allocations, cloud.ports, [*(base_home() / "ledger").glob("*.json")]]
    assert left == [{}, {}, {}, []]
    return " ".join(done.stderr.split())


def ready(directory: Path) -> dict[str, Any]:
    """Return what is recorded of the one machine."""
    (machine,) = json.loads((directory / "machines/ready.json").read_text())["machines"]
    return dict(machine)


def base_home() -> Path:
    return Path(os.environ["VIRTBENCH_HOME"])


def test_a_machine_of_nova_is_made_listed_and_removed(cloud: OpenStack, tmp_path: Path) -> None:
    (tmp_path / "ssh.answers").write_text("connect to host 192.0.2.7 port 22: Connection refused\nPermission denied\n")
    ended_well(machines(*NOVA))
    made = ready(tmp_path)
    assert (made["address"], list(made["ready_s"])) == ("192.0.2.7", [*hire.PARTS])
    (node,) = read_inventory(tmp_path / "machines/hosts.toml").nodes
    assert (node.name, node.host, node.ssh_config) == (made["name"], "root@192.0.2.7", tmp_path / "machines/ssh_config")
    assert node.targets == ("vm", "container-vm")
    (server,) = cloud.servers.values()
    assert server["metadata"] == {"virtbench": made["name"]}
    assert (server["imageRef"], server["flavorRef"], server["networks"]) == (IMAGE, FLAVOR, [{"uuid": NETWORK}])
    assert (server["key_name"], server["config_drive"], "host" in server) == ("me", True, False)
    assert f"{made['name']}: nova, cloud vb: ACTIVE" in machines("list").stdout
    (listed,) = HiredOutput.model_validate_json(machines("list", "--json").stdout, strict=True).machines
    assert listed.model_dump() == {"name": made["name"], "source": "nova", "cloud": "vb", "state": "ACTIVE"}
    done = machines("down", made["name"])
    assert (done.exit_code, done.stdout) == (0, f"removed: {made['name']}\n")
    assert (cloud.servers, machines("list").stdout) == ({}, "")


def test_the_host_key_is_made_here_sent_by_config_drive_and_the_only_one_taken(
    cloud: OpenStack, tmp_path: Path
) -> None:
    (tmp_path / "more.sh").write_text("#!/bin/sh\napt-get install -y podman\n")
    assert machines(*NOVA, "--user-data", "more.sh", "--on-host", "h1").exit_code == 0
    (server,) = cloud.servers.values()
    assert server["host"] == "h1"
    kind, text = base64.b64decode(server["user_data"]).decode().split("\n", 1)
    config = json.loads(text)  # JSON is YAML
    assert (kind, config["disable_root"]) == ("#cloud-config", False)
    assert config["runcmd"] == ["#!/bin/sh\napt-get install -y podman\n"]
    public = config["ssh_keys"]["ed25519_public"]
    assert (tmp_path / "machines/known_hosts").read_text() == f"192.0.2.7 {public}\n"
    (tmp_path / "key").write_text(config["ssh_keys"]["ed25519_private"])
    (tmp_path / "key").chmod(0o600)
    derived = subprocess.check_output(["ssh-keygen", "-y", "-f", str(tmp_path / "key")], text=True)
    assert derived.split()[:2] == public.split()[:2]
    words = (tmp_path / "ssh.log").read_text().split()
    assert f'UserKnownHostsFile "{tmp_path}/machines/known_hosts" ' in (tmp_path / "machines/ssh_config").read_text()
    assert {"StrictHostKeyChecking=yes", "BatchMode=yes"} <= {*words}


def test_an_image_with_a_host_key_of_its_own_gets_no_other(cloud: OpenStack, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text("ssh-ed25519 AAAAC3Nz me@here\n")
    assert machines(*NOVA, "--host-key", "key.pub").exit_code == 0
    assert "user_data" not in next(iter(cloud.servers.values()))
    (tmp_path / "any").write_text("#ignition")
    assert machines(*NOVA, "--host-key", "key.pub", "--user-data", "any", "--out", "more").exit_code == 0
    (_, server) = cloud.servers.values()
    assert base64.b64decode(server["user_data"]) == b"#ignition"
    assert (tmp_path / "machines/known_hosts").read_text() == "192.0.2.7 ssh-ed25519 AAAAC3Nz\n"
    (tmp_path / "key.pub").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert "is no public key" in machines(*NOVA, "--host-key", "key.pub").stderr


def test_no_secret_is_in_files_output_or_arguments(cloud: OpenStack, tmp_path: Path) -> None:
    done = machines(*NOVA)
    once(cloud, "POST", "/compute/v2.1/servers", refused(403, "Quota exceeded for cores", "forbidden"))
    output = done.output + machines(*NOVA, "--out", "more").output + machines("list").output
    files = [path for path in (*tmp_path.rglob("*"), *base_home().rglob("*")) if path.is_file()]
    texts = [output, *(path.read_text() for path in files if path.name not in ("clouds.yaml", "ssh"))]
    assert len(texts) > 6
    for secret in (PASSWORD, "gAAAA-a-secret-token", "PRIVATE KEY", "another-secret"):
        assert [text for text in texts if secret in text] == []


def test_what_a_flavor_and_an_image_leave_to_chance_is_named(cloud: OpenStack, tmp_path: Path) -> None:
    cloud.specs = {"quota:cpu_quota": "10000"}
    done = machines(*NOVA)
    unfair = json.loads((tmp_path / "machines/ready.json").read_text())["unfair"]
    assert unfair == [f"flavor b2: {words}" for words in _unfair(cloud.specs)]
    assert done.stderr.count("unfair: flavor b2: ") == len(unfair) == 3
    cloud.specs.clear()  # properties of the image count where the flavor has none
    cloud.images[IMAGE] |= {"hw_cpu_policy": "dedicated", "hw_mem_page_size": "1GB", "hw_numa_nodes": "4"}
    assert "unfair: flavor b2: hw:numa_nodes is 4" in machines(*NOVA, "--out", "other").stderr
    once(cloud, "GET", ".*/os-extra_specs", refused(403, "Policy doesn't allow it to be performed.", "forbidden"))
    assert "flavor b2: the cloud does not show its extra specs" in machines(*NOVA, "--out", "hidden").stderr


@pytest.mark.parametrize(
    ("specs", "named"),
    [
        ({"hw:cpu_thread_policy": "isolate"}, ""),
        ({"hw:cpu_thread_policy": "prefer"}, "hw:cpu_thread_policy is prefer and not isolate"),
        ({"hw:cpu_thread_policy": "require"}, "hw:cpu_thread_policy is require and not isolate"),
        ({}, "hw:cpu_thread_policy is prefer and not isolate"),
        ({"hw:cpu_thread_policy": "isolate", "resources:VCPU": "4"}, "resources:VCPU is 4"),
    ],
)
def test_a_flavor_whose_cpus_may_share_a_core_is_named(specs: dict[str, str], named: str) -> None:
    found = [*_unfair({"hw:cpu_policy": "dedicated", "hw:mem_page_size": "large", **specs})]
    assert [text.partition(":")[0] for text in found] == ([named.partition(":")[0]] if named else [])
    assert all(text.startswith(named) for text in found)


def test_what_the_sdk_refuses_is_told_in_its_words(cloud: OpenStack, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.images["twin"] = {"id": "twin", "name": "debian"}
    assert "More than one Image exists with the name 'debian'" in failed(cloud, *NOVA, code=2)
    cloud.password = "changed"
    message = failed(cloud, *NOVA, code=2)
    assert "cloud vb: The request you have made requires authentication." in message
    assert "openstack --os-cloud vb token issue" in message
    file = Path("clouds.yaml")
    file.write_text(file.read_text().replace(cloud.url, "http://127.0.0.1:9"))
    assert "http://127.0.0.1:9" in failed(cloud, *NOVA, code=2)
    monkeypatch.setitem(sys.modules, "openstack.config.loader", None)
    assert "pip install 'virtbench[openstack]'" in failed(cloud, *NOVA, code=2)


QUOTA = "Quota exceeded for ram: Requested 200000, but already used 0 of 2048 ram"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refused(403, QUOTA, "forbidden"), f"{QUOTA} what to do: free some of it"),
        (refused(400, "Compute host elsewhere could not be found."), "Compute host elsewhere could not be found."),
        (refused(403, "Policy doesn't allow os_compute_api:servers:create:requested_destination"), "such as --on-host"),
        (refused(500, "Unexpected API Error.", "computeFault"), "Unexpected API Error."),
    ],
)
def test_what_nova_refuses_is_told_in_its_words_and_the_machines_before_are_removed(
    cloud: OpenStack, answer: Answer, message: str
) -> None:
    passed: list[int] = []
    cloud.instead.append(("POST", ".*/servers", lambda _: answer if len(passed) == 2 else passed.append(1)))
    assert message in failed(cloud, *NOVA, "--count", "3")
    assert [method for method, path, _ in cloud.asked if method == "DELETE"] == ["DELETE"] * 2


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "Only volume-backed servers are allowed for flavors with zero disk."),
        (400, "Flavor's disk is too small for requested image. Flavor disk is 1 bytes, image is 2 bytes."),
    ],
)
def test_a_flavor_without_a_disk_for_the_image_is_named(cloud: OpenStack, status: int, words: str) -> None:
    once(cloud, "POST", ".*/servers", refused(status, words))
    message = failed(cloud, *NOVA)
    assert words in message
    assert "choose a flavor whose disk is at least the image's" in message


def test_a_server_that_does_not_come_is_told_with_its_state_and_all_are_removed(cloud: OpenStack) -> None:
    fault = {"message": "No valid host was found. There are not enough hosts available.", "code": 500}
    cloud.course[:] = [{}, {"status": "ERROR", "OS-EXT-STS:task_state": None, "fault": fault}]
    message = failed(cloud, *NOVA, "--count", "2")
    assert "ERROR: No valid host was found." in message
    assert "choose a flavor for which a host has room" in message
    cloud.course[:] = [{**ACTIVE, "addresses": {}}]
    assert "is ACTIVE without an address" in failed(cloud, *NOVA)
    cloud.course[:] = [SPAWNING]
    said = "was not ready within 2 s: not built: BUILD (spawning) what to do: see what the cloud is waiting for"
    assert said in failed(cloud, *NOVA, "--within", "2s")


@pytest.mark.parametrize(
    ("answer", "part", "step"),
    [
        ("ssh: connect to host 192.0.2.7 port 22: Connection timed out", "booted", "security groups"),
        ("root@192.0.2.7: Permission denied (publickey).", "reachable", "reads its config drive"),
        ("Host key verification failed.", "reachable", "reads its config drive"),
        ('Please login as the user "ubuntu" rather than the user "root".', "reachable", "root may log in"),
    ],
)
def test_ssh_that_never_answers_is_told_with_its_last_words(
    cloud: OpenStack, tmp_path: Path, answer: str, part: str, step: str
) -> None:
    (tmp_path / "ssh.answers").write_text(f"{answer}\n" * 1000)
    message = failed(cloud, *NOVA, "--within", "9s")
    assert f"not {part}: {answer}" in message
    assert step in message


def test_a_lost_answer_to_a_request_leaves_no_server(cloud: OpenStack) -> None:
    """The server is made, and the answer is an error: it is found by name and tag."""

    def lose(body: dict[str, Any]) -> Answer:
        cloud.servers["x"] = {"id": "x", "status": "BUILD", "looks": [], **body["server"]}
        return refused(504, "The server did not respond in time.", "gatewayTimeout")

    cloud.instead.append(("POST", ".*/servers", lose))
    assert "The server did not respond in time." in failed(cloud, *NOVA)


def test_ctrl_c_removes_what_was_made(cloud: OpenStack, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hire, "run_apart", press)
    assert machines(*NOVA, "--count", "2").exit_code == 130
    assert cloud.servers == {}


def test_what_the_cloud_does_not_delete_is_told_in_its_words_and_stays_in_the_ledger(
    cloud: OpenStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, locked = hired(cloud), "Instance is locked"
    once(cloud, "DELETE", ".*/servers/.*", refused(409, locked, "conflictingRequest"))
    done = machines("down", "--all")
    assert done.exit_code == 1
    assert f"{name} may still be in cloud vb and cost money: refused: {locked}" in done.stderr
    assert "try again later" in done.stderr
    monkeypatch.setattr(base, "REMOVED_WITHIN_S", 0.1)
    once(cloud, "DELETE", ".*/servers/.*", (204, {}))
    assert "it is not gone after 0.1 s: ACTIVE" in machines("down", "--all").stderr
    assert machines("down", "--all").exit_code == 0
    assert cloud.servers == {}


def test_every_machine_that_stays_is_named_with_the_cause(cloud: OpenStack) -> None:
    once(cloud, "DELETE", ".*/servers/.*", refused(409, "Instance is locked", "conflictingRequest"), times=2)
    cloud.course[:] = [{"status": "ERROR", "fault": {"message": "No valid host was found."}}]
    done = machines(*NOVA, "--count", "2")
    assert (done.exit_code, "No valid host was found." in done.stderr) == (1, True)
    assert all(f"{name} may still be in cloud vb and cost money" in done.stderr for name in names(cloud))
    assert len(names(cloud)) == 2


@pytest.mark.parametrize(
    "shape",
    [
        {"clouds": None},
        {"clouds": "vb"},
        {"clouds": {"vb": None}},
        {"clouds": {"vb": ["x"]}},
        {"clouds": {"vb": {"auth": None}}},
        {"clouds": {"vb": {"auth": {"auth_url": 5}}}},
        {"clouds": {"vb": {"auth_type": ["x"]}}},
        {"clouds": {"vb": {}}, "cache": 5},
        "clouds: [",
        "clouds: {vb: {}}",
        "clouds: {vb: {auth: {auth_url: nonsense}}}",
    ],
)
def test_a_clouds_yaml_of_a_wrong_shape_is_one_sentence(cloud: OpenStack, tmp_path: Path, shape: object) -> None:
    (tmp_path / "clouds.yaml").write_text(shape if isinstance(shape, str) else json.dumps(shape))
    unread = "" if isinstance(shape, str) else "openstacksdk cannot read clouds.yaml ("
    assert f"bench: cloud vb: {unread}" in failed(cloud, *NOVA, code=2)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", path, status) for path in ("/identity.*", ".*/compute.*", ".*/flavors.*") for status in (200, 502)),
        *(("GET", ".*/servers/[^/]*", 200), ("GET", ".*/flavors.*", 404)),
        *(("POST", path, status) for path in (".*/auth/tokens", ".*/servers") for status in (201, 502)),
    ],
)
def test_a_server_that_answers_by_a_page_is_one_sentence(cloud: OpenStack, method: str, path: str, status: int) -> None:
    page = f"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>{'<p>Welcome</p>' * 99}</body></html>"
    once(cloud, method, path, (status, page), times=5000)
    done = machines(*NOVA, "--within", "1s")
    assert done.exit_code in (1, 2), done.output
    assert isinstance(done.exception, SystemExit), "a message, and no traceback"
    assert len([line for line in done.stderr.splitlines() if line.startswith("bench: ")]) == 1
    assert "<p>" not in done.stderr
    assert not cloud.servers or "may still be in cloud vb and cost money" in done.stderr


def test_what_a_cloud_repeats_is_shown_without_the_secrets_in_it(cloud: OpenStack) -> None:
    repeated = f"no token {TOKEN} of u with password={PASSWORD} at http://u:other-word@192.0.2.1/v3"
    once(cloud, "POST", ".*/servers", refused(403, repeated))
    assert "no token *** of u with password=*** at http://***@192.0.2.1/v3" in failed(cloud, *NOVA)
    cloud.course[:] = [{"status": "ERROR", "fault": {"message": repeated}}]
    assert TOKEN not in failed(cloud, *NOVA)
    cloud.course[:] = [ACTIVE]
    assert machines(*NOVA).exit_code == 0
    server = next(iter(cloud.servers.values()))
    server["looks"][:] = []
    server |= {"status": "ERROR", "fault": {"message": f"{'x' * 290} {repeated}"}}
    shown = machines("list").stdout + machines("list", "--json").stdout
    assert "no token ***" in shown
    assert not {TOKEN, PASSWORD, "other-word"} & {*re.split(r"[ =:@]", shown)}


@pytest.mark.parametrize(
    ("secret", "repeated", "shown"),
    [
        ("two\nlines of it", "no key two\nlines of it", "no key ***"),
        ("", "at https://u:p@ss@192.0.2.1/v3", "at https://***@192.0.2.1/v3"),
        ("", "at https://ghp_x@192.0.2.1/v3", "at https://***@192.0.2.1/v3"),
        ("", '{"url":"http://192.0.2.1","to":"a@b"}', '{"url":"http://192.0.2.1","to":"a@b"}'),
        ("1234", '{"bytes": 91234}, pin=1234.', '{"bytes": 91234}, pin=***.'),
        ("admin", "no admin in /home/admin of administrators", "no *** in /home/admin of administrators"),
        ("long-one", "xlong-onex", "x***x"),
    ],
)
def test_a_secret_is_hidden_whole_and_words_that_hold_it_stay(secret: str, repeated: str, shown: str) -> None:
    keep_secret(secret)
    with pytest.raises(CloudError) as caught, base.refusals("cloud vb"):
        raise base.library("openstack.exceptions").SDKException(repeated)
    assert caught.value.message == f"cloud vb: {shown}"


def test_another_projects_server_of_the_same_name_is_left_alone(cloud: OpenStack) -> None:
    name = hired(cloud)
    cloud.servers["other"] = {"id": "other", "name": name, "metadata": {}, "status": "ACTIVE", "looks": []}
    assert machines("down", name).exit_code == 0
    assert [*cloud.servers] == ["other"]


def test_clean_leaves_hired_machines_until_it_is_given_all_and_goes_on_behind_damaged_entries(
    cloud: OpenStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.machine.foreign_things", list)  # of benches that run here beside this test
    assert machines(*NOVA, "--count", "2").exit_code == 0
    for file in (base_home() / "ledger").glob("*.json"):
        entry = {**json.loads(file.read_text()), "owner_pid": 1, "owner_started": -1.0}
        assert entry["kept"] is True
        file.write_text(json.dumps(entry))
        os.utime(file, (0, 0))  # the last ones to be looked at
    done = CliRunner().invoke(cli.main, ["clean"])
    stay = "2 hired machines stay: see bench machines list\n"
    assert (done.stdout, done.stderr) == ("nothing was left behind\n", stay)
    for number, damaged in enumerate((r'"a\x", "vb"', '"", "vb", "x"', '"\x01", "vb"', '"", ""vb"')):
        what = {"what": f'["nova", {damaged}, "virtbench-0123456789ab"]', "kept": number % 2 == 0}
        (base_home() / f"ledger/{number}.json").write_text(json.dumps({**entry, **what}))
    done = CliRunner().invoke(cli.main, ["clean", "--all"])
    assert done.exit_code == 1, done.output
    assert done.stderr.count("no name that the suite gives to a hired-machine") == 4
    assert cloud.servers == {}
    assert machines("list").exit_code == 0


@pytest.mark.parametrize("moment", ["asked", pytest.param("booted", marks=pytest.mark.thorough)])
def test_clean_removes_what_a_killed_up_has_made(cloud: OpenStack, tmp_path: Path, moment: str) -> None:
    """The ledger comes first: whenever the process is killed, the machine can be found."""
    (tmp_path / "ssh.answers").write_text("Connection refused\n" * 1000)
    cloud.course[:] = [ACTIVE]
    up = [sys.executable, str(Path(cli.__file__)), "machines", *NOVA]
    with subprocess.Popen(up, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (cloud.servers and (moment == "asked" or (tmp_path / "ssh.log").exists())):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert len(cloud.servers) == 1
    assert "removed: hired-machine [" in ended_well(CliRunner().invoke(cli.main, ["clean"])).stdout
    assert cloud.servers == {}


def test_an_inventory_of_hired_machines_is_not_overwritten(cloud: OpenStack) -> None:
    assert machines(*NOVA).exit_code == 0
    done = machines(*NOVA)
    assert (done.exit_code, len(cloud.servers)) == (2, 1)
    assert "machines/hosts.toml lists virtbench-" in done.stderr
    assert machines("down", "--all").exit_code == 0
    assert machines(*NOVA).exit_code == 0


def test_down_and_list_tell_what_is_unknown_gone_or_not_answered(cloud: OpenStack) -> None:
    name = hired(cloud)
    assert "no machine 'x' is hired" in machines("down", "x").stderr
    assert "name machines, or give --all" in machines("down").stderr
    assert len(cloud.servers) == 1
    cloud.servers.clear()
    assert machines("list").stdout == f"{name}: nova, cloud vb: gone\n"
    cloud.password = "changed"
    assert "The request you have made requires authentication." in machines("list").stdout


IRONIC = ("up", "--from", "ironic", "--cloud", "vb", "--resource-class", "big")
DISK = ("--image", "debian", "--public-key", "id.pub", "--network", "lab")
RAMDISK = ("--kernel", "file:///k", "--ramdisk", "file:///r", "--host-key", "host.pub", "--address", "192.0.2.9")


@pytest.fixture
def metal(cloud: OpenStack, tmp_path: Path) -> OpenStack:
    """The cloud, with one node."""
    node = {"uuid": "n-1", "name": "node0", "resource_class": "big", "provision_state": "available"}
    cloud.nodes["n-1"] = {**node, "allocation_uuid": None, "last_error": None, "instance_info": {}}
    cloud.deployment[:] = [{}, {"provision_state": "wait call-back"}, {"provision_state": "active"}]
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAAC3Nz me@here\n")
    (tmp_path / "host.pub").write_text("ssh-ed25519 AAAAHost root@ramdisk\n")
    return cloud


def test_a_node_is_allocated_deployed_with_a_config_drive_and_released(metal: OpenStack, tmp_path: Path) -> None:
    ended_well(machines(*IRONIC, *DISK))
    made = ready(tmp_path)
    assert read_inventory(tmp_path / "machines/hosts.toml").nodes[0].targets == ("bare-metal", "container")
    assert (made["address"], list(made["ready_s"])) == ("127.0.0.1", [*hire.PARTS])
    (node,), (port,), (allocation,) = metal.nodes.values(), metal.ports.values(), metal.allocations.values()
    assert (allocation["name"], allocation["extra"]) == (made["name"], {"virtbench": made["name"]})
    assert (port["network_id"], port["name"], metal.vifs) == (NETWORK, made["name"], [port["id"]])
    assert node["instance_info"] == {"image_source": IMAGE, "image_type": "whole-disk"}
    drive = node["config_drive"]
    assert drive["meta_data"]["public_keys"] == {"virtbench": "ssh-ed25519 AAAAC3Nz me@here"}
    assert "ssh_keys" in drive["user_data"]
    assert "node node0 is active" in machines("list").stdout
    assert machines("down", "--all").exit_code == 0
    assert (metal.allocations, metal.ports, node["provision_state"]) == ({}, {}, "available")


def test_an_image_at_a_url_is_named_with_its_checksum(metal: OpenStack) -> None:
    words = ("--image", "https://example.org/d.img", "--public-key", "id.pub", "--network", "lab")
    assert "--image is a URL without --checksum" in failed(metal, *IRONIC, *words, code=2)
    assert machines(*IRONIC, *words, "--checksum", "abc").exit_code == 0
    info = metal.nodes["n-1"]["instance_info"]
    assert (info["image_os_hash_algo"], info["image_os_hash_value"]) == ("sha256", "abc")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*NOVA, "--image", "nope"), "the cloud has no image 'nope' what to do: choose one of: openstack image list"),
        ((*NOVA, "--flavor", "nope"), "the cloud has no flavor 'nope'"),
        ((*NOVA, "--network", "nope"), "the cloud has no network 'nope'"),
        ((*NOVA, "--key", "nope"), "the cloud has no keypair 'nope'"),
        ((*NOVA, "--cloud", "nope"), "cloud nope: Cloud nope was not found."),
        ((*NOVA, "--user-data", "nope.sh"), "nope.sh: No such file or directory"),
        ((*IRONIC, "--network", "lab"), "no system to deploy what to do: give --image, or --kernel with --ramdisk"),
        ((*IRONIC, "--image", "debian", "--public-key", "id.pub"), "the address of each machine is unknown"),
        ((*IRONIC, *RAMDISK, "--count", "2"), "the address of each machine is unknown"),
        ((*IRONIC, *DISK, "--network", "nope"), "the cloud has no network 'nope'"),
        ((*IRONIC, *DISK, "--image", "nope"), "the cloud has no image 'nope'"),
    ],
)
def test_what_a_cloud_cannot_serve_is_refused_before_all_else(
    metal: OpenStack, words: tuple[str, ...], message: str
) -> None:
    assert message in failed(metal, *words, code=2)
    assert [path for method, path, _ in metal.asked if method == "POST" and "tokens" not in path] == []


ERROR = "Deploy step deploy.deploy failed: Specified image file not found."
GONE = {"provision_state": "deploy failed", "last_error": None}
EVENTS = [("ERROR", "of old"), ("ERROR", ERROR), ("INFO", "Node health status changed")]


@pytest.mark.parametrize(
    ("deployment", "history"),
    [
        ([{}, GONE, GONE, {"last_error": ERROR}], []),  # it first powers the node off, and then writes why
        ([{}, {"last_error": ERROR}, GONE], []),  # recorded with Ironic 39: the power action clears it
        ([GONE], [{"severity": severity, "event": event} for severity, event in EVENTS]),
    ],
)
def test_a_deployment_that_fails_is_told_with_its_error_whenever_that_is_there(
    metal: OpenStack, deployment: list[Any], history: list[Any]
) -> None:
    metal.deployment[:], metal.history[:] = deployment, history
    assert f"node node0 is deploy failed: {ERROR}" in failed(metal, *IRONIC, *DISK)
    assert metal.nodes["n-1"]["provision_state"] == "available"


def test_a_failure_without_a_reason_is_waited_for_a_while(metal: OpenStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ironic, "REASON_WITHIN_S", 0.1)
    metal.deployment[:] = [{"provision_state": "deploy failed"}]
    once(metal, "GET", ".*/history", of_ironic(406, "Version 1.78 was requested but is not supported"), times=100)
    assert "node node0 is deploy failed: Ironic gives no reason" in failed(metal, *IRONIC, *DISK)


def test_what_ironic_refuses_is_told_in_its_words(metal: OpenStack) -> None:
    message = failed(metal, *IRONIC, *DISK, "--resource-class", "huge")
    assert "Failed to process allocation x for node: no available nodes match the resource class big" in message
    assert "wait until a node of this --resource-class is available" in message
    reason = "Cannot validate image information for node: missing kernel"
    once(metal, "GET", ".*/validate", (200, {"boot": {"result": False, "reason": reason}}))
    assert reason in failed(metal, *IRONIC, *DISK)
    once(metal, "PUT", ".*/states/provision", of_ironic(400, "The requested action active can not be performed"))
    assert "The requested action active can not be performed" in failed(metal, *IRONIC, *DISK)


def test_a_node_that_ironic_does_not_release_is_told_with_its_error(metal: OpenStack) -> None:
    assert machines(*IRONIC, *DISK).exit_code == 0

    def stick(_: dict[str, Any]) -> Answer:
        metal.nodes["n-1"] |= {"provision_state": "error", "last_error": "the BMC does not answer"}
        return 202, {}

    metal.instead.append(("PUT", ".*/states/provision", stick))
    done = machines("down", "--all")
    assert (done.exit_code, len(metal.allocations)) == (1, 1)
    assert "cost money: node node0 is error: the BMC does not answer" in done.stderr
    metal.instead.clear()
    assert machines("down", "--all").exit_code == 0


def test_a_node_of_somebody_else_is_left_alone(metal: OpenStack) -> None:
    assert machines(*IRONIC, *DISK).exit_code == 0
    metal.nodes["n-1"]["allocation_uuid"] = "of another"
    assert machines("down", "--all").exit_code == 0
    assert (metal.allocations, metal.nodes["n-1"]["provision_state"]) == ({}, "active")


SITE = ("run", "--site", "nova", "--target", "vm", "--profile", "smoke")
WORDS = "cloud=vb,image=debian,flavor=b2,network=lab,key=me"


@pytest.fixture
def on_site(cloud: OpenStack, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a run sees on hired machines; their discovery and the measurement are stood in for."""
    seen: dict[str, Any] = {"ended": None}

    def discovered(inventory: Inventory, *_: object) -> Discovery:
        seen["listed"], seen["servers"] = inventory.nodes, names(cloud)
        machine = DiscoveredMachine((0, 1), 8 << 30, "nova-1", capability="avx2", clock_offset_s=0.0)
        return Discovery((machine,), "runc")

    def measured(made: Ready, *_: object, **__: object) -> list[Any]:
        mine, entries = ("hired-machine", os.getpid(), False), [entry for _, entry in ledger._readable()]
        held = [each.what for each in entries if (each.kind, each.owner_pid, each.kept) == mine]
        seen["plan"], seen["held"] = made.plan, held
        assert len(cloud.servers) == 1
        if seen["ended"]:
            raise seen["ended"]
        return []

    monkeypatch.setattr("provisioning.sites.machines.discover", discovered)
    monkeypatch.setattr("commands.run.command._measured", measured)
    monkeypatch.setattr("commands.run.resolve._image_of", lambda _: sites.IMAGE)
    return seen


def test_a_run_makes_its_machine_measures_on_it_and_returns_it(cloud: OpenStack, on_site: dict[str, Any]) -> None:
    ended_well(CliRunner().invoke(cli.main, [*SITE, "--hire", WORDS]))
    (node,), (server,) = on_site["listed"], on_site["servers"]
    assert (node.name, node.host, node.targets) == ("nova-1", "root@192.0.2.7", ("vm", "container-vm"))
    assert [json.loads(what)[3] for what in on_site["held"]] == [server]
    plan = on_site["plan"]
    assert [machine.name for machine in plan.job.machines] == ["nova-1"]
    assert (plan.request.joining.site, plan.request.joining.inventory) == ("nova", None)
    assert (cloud.servers, [*(base_home() / "ledger").glob("*.json")]) == ({}, [])
    assert not node.ssh_config.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RequestError("the run fails")])
def test_a_run_that_fails_returns_its_machine(cloud: OpenStack, on_site: dict[str, Any], error: BaseException) -> None:
    on_site["ended"] = error
    assert CliRunner().invoke(cli.main, [*SITE, "--hire", WORDS]).exit_code != 0
    assert (len(on_site["servers"]), cloud.servers, [*(base_home() / "ledger").glob("*.json")]) == (1, {}, [])


def test_a_machine_that_stays_after_a_run_is_named(cloud: OpenStack, on_site: dict[str, Any]) -> None:
    once(cloud, "DELETE", ".*/servers/.*", refused(409, "Cannot delete it while it is locked", "conflictingRequest"))
    done = CliRunner().invoke(cli.main, [*SITE, "--hire", WORDS])
    assert (done.exit_code, len(cloud.servers)) == (1, 1)
    assert "may still be in cloud vb and cost money: refused: " in " ".join(done.stderr.split())
    assert on_site["plan"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hire", WORDS.replace("b2", "b9")), "the cloud has no flavor 'b9' what to do: choose one of: openstack fl"),
        (("--hire", WORDS.replace("cloud=vb", "cloud=no")), "cloud no: Cloud no was not found."),
        (("--hire", WORDS, "--dry-run"), "a plan needs the machines, which bench run makes when it measures"),
    ],
)
def test_what_a_run_cannot_hire_is_refused_before_anything_is_made(
    cloud: OpenStack, on_site: dict[str, Any], words: tuple[str, ...], message: str
) -> None:
    done = CliRunner().invoke(cli.main, [*SITE, *words])
    assert (done.exit_code, "plan" in on_site) == (2, False), done.output
    assert message in " ".join(done.stderr.split())
    assert [path for method, path, _ in cloud.asked if method == "POST" and "tokens" not in path] == []
