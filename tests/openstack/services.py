"""The services, started one after the other and ended with the context: see ``cloud``."""

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import openstack

from provisioning.images.image import Image
from tests.integration.booted_image import ARGUMENTS
from tests.integration.test_ironic import await_listener
from tests.openstack.configuration import ACCOUNT, AMQP_PORT, PORTS, REGION, SQL_PORT, UPLINK, URLS, configurations

DATABASES = ("keystone", "glance", "placement", "nova", "nova_api", "nova_cell0", "neutron")
OTHER_END = "vbv1"
"""The other end of the cable of ``UPLINK``."""
HERE, ADDRESS, SUBNET = "198.18.78.1/24", "198.18.78.10", "198.18.78.0/24"
"""Addresses that are reserved for benchmarks (RFC 2544). The subnet has one for a machine: its ramdisk knows it."""
SERVICES = {"image": "glance", "placement": "placement", "compute": "nova", "network": "neutron"}
ENDS_WITHIN_S = 10.0


@dataclass
class Programs:
    """Programs that work in ``place``; their output goes to files of ``log``."""

    place: Path
    stack: ExitStack
    environment: dict[str, str] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def note(self, what: str) -> None:
        print(f"{time.monotonic() - self.began_s:6.1f} s  {what}")

    def run(self, *argv: str, stdin: str = "") -> None:
        with (self.place / "log" / f"{Path(argv[0]).name}.out").open("a+") as log:
            started = log.tell()
            ended = subprocess.run(
                argv, cwd=self.place, env=self.environment, input=stdin, text=True, stdout=log, stderr=log, check=False
            )
            log.seek(started)
            assert ended.returncode == 0, f"{argv}: {log.read()[-3000:]}"

    def start(self, *argv: str, **environment: str) -> "subprocess.Popen[bytes]":
        name = Path(argv[0]).name
        with (self.place / "log" / f"{name}.out").open("a") as log:
            variables = {**self.environment, **environment}
            process = subprocess.Popen(
                argv, cwd=self.place, env=variables, stdout=log, stderr=log, start_new_session=True
            )
        self.stack.callback(_end, process)
        return process

    def start_configured(self, program: str, configuration: str) -> None:
        self.start(program, "--config-file", f"{configuration}.conf")

    def serve(self, name: str, file: str) -> None:
        """Start a service that is only a WSGI application. Without the header uwsgi resets kept connections."""
        options = ["--plugins", "python3", "--master", "--die-on-term", "--enable-threads", "--lazy-apps"]
        options += ["--buffer-size", "65535", "--add-header", "Connection: close", "--processes", "2", "--threads", "2"]
        self.start("uwsgi", *options, "--http-socket", f"127.0.0.1:{PORTS[name]}", "--wsgi-file", file)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a program and all that it has started in its session."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def isolate() -> None:
    """Complete the namespaces that ``unshare --net --mount`` has made: /sys shows this network; there is a cable."""
    groups = tempfile.mkdtemp()
    for argv in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "--rbind", "/sys/fs/cgroup", groups],
        ["mount", "-t", "sysfs", "sysfs", "/sys"],
        ["mount", "--move", groups, "/sys/fs/cgroup"],
        ["rmdir", groups],
        ["ip", "link", "set", "lo", "up"],
        ["ip", "link", "add", UPLINK, "type", "veth", "peer", "name", OTHER_END],
        ["ip", "link", "set", UPLINK, "up"],
        ["ip", "link", "set", OTHER_END, "up"],
        ["ip", "address", "add", HERE, "dev", UPLINK],
    ):
        subprocess.run(argv, check=True)


@contextmanager
def cloud(place: Path, libvirt: str, image: Image) -> Iterator[Any]:
    """Start a cloud, ``lab`` in the clouds.yaml of ``place``; yield the connection to it.

    It has the image ``disk``, which starts with ``kernel`` and ``ramdisk`` of ``place``, a flavor ``small``, a network
    ``lab`` and a key ``me``.
    """
    for name in ("log", "rabbit", "fernet", "credential", "images", "instances", "state", "locks"):
        (place / name).mkdir(mode=0o700)
    for name, text in configurations(place, libvirt).items():
        (place / f"{name}.conf").write_text(text)
    (place / "clouds.yaml").write_text(json.dumps({"clouds": {"lab": {"region_name": REGION, "auth": ACCOUNT}}}))
    with ExitStack() as stack:
        programs = Programs(place, stack)
        programs.environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(place),
            "LANG": "C.UTF-8",
            "OS_KEYSTONE_CONFIG_FILES": str(place / "keystone.conf"),
            "OS_KEYSTONE_CONFIG_DIR": str(place),
            "OS_PLACEMENT_CONFIG_DIR": str(place),
        }
        _start_brokers(programs)
        with ThreadPoolExecutor() as lanes:
            for lane in [lanes.submit(_fill, programs, lane) for lane in (_keystone, _nova)]:
                lane.result()
        programs.note("databases")
        _start_services(programs)
        connected = partial(openstack.connect, load_yaml_config=False, load_envvars=False, region_name=REGION)
        _register(connected(auth=ACCOUNT))
        sdk = connected(auth=ACCOUNT)  # a connection keeps the catalog of its first token
        programs.start_configured("nova-scheduler", "nova")  # looks in the catalog
        for url in URLS.values():
            _await(partial(_answers, url), url)
        programs.note("services")
        _furnish(sdk, place, image)
        programs.note("image, network, flavor and key")
        programs.start_configured("nova-compute", "nova")
        programs.start_configured("neutron-linuxbridge-agent", "neutron")
        _await(lambda: any(agent.is_alive for agent in sdk.network.agents()), "the network's agent")
        _await(lambda: any(each.binary == "nova-compute" for each in sdk.compute.services()), "nova-compute")
        programs.run("nova-manage", "--config-file", "nova.conf", "cell_v2", "discover_hosts", "--by-service")
        _await(lambda: bool([*sdk.compute.hypervisors()]), "the hypervisor")
        programs.note("hypervisor")
        yield sdk


def _await(is_there: Callable[[], object], what: str, within_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not is_there():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.5)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=30).close()  # noqa: S310 (one of URLS)
    except urllib.error.HTTPError as refusal:
        refusal.close()
    except OSError:
        return False
    return True


def _start_brokers(programs: Programs) -> None:
    """Start the database server and the message queue; what they hold need not outlive a crash."""
    place = programs.place
    rabbit = place / "rabbit"
    (rabbit / "plugins").write_text("[].\n")
    (rabbit / "rabbitmq.conf").write_text("loopback_users = none\nvm_memory_high_watermark.relative = 0.2\n")
    names: Mapping[str, object] = {
        "RABBITMQ_NODENAME": "vb@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": AMQP_PORT,
        "RABBITMQ_MNESIA_BASE": rabbit / "mnesia",
        "RABBITMQ_LOG_BASE": rabbit / "log",
        "RABBITMQ_PID_FILE": rabbit / "pid",
        "RABBITMQ_ENABLED_PLUGINS_FILE": rabbit / "plugins",
        "RABBITMQ_CONFIG_FILE": rabbit / "rabbitmq",
        "RABBITMQ_DIST_PORT": 25673,
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none",
        "HOME": rabbit,
    }
    # In the session of its starter, so that the epmd that Erlang would leave behind ends with it.
    programs.start("epmd", "-address", "127.0.0.1", "-port", "4370")
    epmd = {"ERL_EPMD_PORT": "4370", "ERL_EPMD_ADDRESS": "127.0.0.1"}
    programs.start("/usr/lib/rabbitmq/bin/rabbitmq-server", **{key: str(value) for key, value in names.items()}, **epmd)
    own = ["--no-defaults", "--user=root", f"--datadir={place}/sql"]
    programs.run("mariadb-install-db", *own, "--auth-root-authentication-method=normal", "--skip-test-db")
    quick = ["--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--sync-binlog=0"]
    small = ["--performance-schema=OFF", "--innodb-buffer-pool-size=64M", "--max-connections=500"]
    address = ["--bind-address=127.0.0.1", f"--port={SQL_PORT}", f"--socket={place}/sql.sock"]
    programs.start("mariadbd", *own, *quick, *small, *address, f"--pid-file={place}/sql.pid")
    await_listener(SQL_PORT)
    text = "".join(
        f"create database {name} character set utf8;"
        + "".join(f"grant all on {name}.* to 'os'@'{host}' identified by 'os';" for host in ("127.0.0.1", "localhost"))
        for name in DATABASES
    )
    programs.run("mariadb", "--no-defaults", f"--socket={place}/sql.sock", stdin=text)
    await_listener(AMQP_PORT)
    programs.note("MariaDB and RabbitMQ")


def _fill(programs: Programs, steps: Callable[[], Iterator[Sequence[str]]]) -> None:
    for program, name, *words in steps():
        programs.run(program, "--config-file", f"{name}.conf", *words)


def _keystone() -> Iterator[Sequence[str]]:
    user = ["--keystone-user", "root", "--keystone-group", "root"]
    own = ["--bootstrap-password", ACCOUNT["password"], "--bootstrap-region-id", REGION]
    urls = [word for kind in ("admin", "internal", "public") for word in (f"--bootstrap-{kind}-url", URLS["keystone"])]
    yield "keystone-manage", "keystone", "db_sync"
    yield "keystone-manage", "keystone", "fernet_setup", *user
    yield "keystone-manage", "keystone", "bootstrap", *own, *urls
    yield "glance-manage", "glance", "db_sync"
    yield "placement-manage", "placement", "db", "sync"


def _nova() -> Iterator[Sequence[str]]:
    cell = f"mysql+pymysql://os:os@127.0.0.1:{SQL_PORT}/nova_cell0"
    yield "nova-manage", "nova", "api_db", "sync"
    yield "nova-manage", "nova", "cell_v2", "map_cell0", "--database_connection", cell
    yield "nova-manage", "nova", "cell_v2", "create_cell", "--name", "cell1"
    yield "nova-manage", "nova", "db", "sync"
    yield "neutron-db-manage", "neutron", "upgrade", "heads"


def _start_services(programs: Programs) -> None:
    programs.serve("keystone", "/usr/bin/keystone-wsgi-public")
    programs.serve("placement", "/usr/bin/placement-api")
    programs.start_configured("glance-api", "glance")
    programs.start_configured("neutron-server", "neutron")
    for name in ("api", "conductor"):
        programs.start_configured(f"nova-{name}", "nova")
    _await(partial(_answers, URLS["keystone"]), "keystone")


def _register(sdk: Any) -> None:
    for kind, name in SERVICES.items():
        service = sdk.identity.create_service(name=name, type=kind)
        for interface in ("public", "internal", "admin"):
            where = {"service_id": service.id, "interface": interface, "region_id": REGION}
            sdk.identity.create_endpoint(url=URLS[name], **where)


def _furnish(sdk: Any, place: Path, image: Image) -> None:
    def upload(name: str, file: Path, disk: str, container: str, **more: str) -> str:
        with file.open("rb") as data:  # one that is given by its name stays open
            formats = {"disk_format": disk, "container_format": container}
            return str(sdk.image.create_image(name=name, data=data, wait=True, **formats, **more).id)

    forms = {"kernel": "aki", "ramdisk": "ari"}
    parts = {f"{name}_id": upload(name, place / name, form, form) for name, form in forms.items()}
    hardware = {"hw_disk_bus": "virtio", "hw_vif_model": "virtio", "hw_rng_model": "virtio", "hw_video_model": "none"}
    # The config drive is a CD, and the image's kernel has no driver for those on q35.
    hardware |= {"hw_machine_type": "pc", "hw_cdrom_bus": "ide", "os_command_line": ARGUMENTS}
    upload("disk", image.file("disk.img"), "raw", "bare", **parts, **hardware)
    flat = {"provider_network_type": "flat", "provider_physical_network": "phys", "is_port_security_enabled": False}
    network = sdk.network.create_network(name="lab", **flat)
    reach = {"ip_version": 4, "cidr": SUBNET, "allocation_pools": [{"start": ADDRESS, "end": ADDRESS}]}
    sdk.network.create_subnet(network_id=network.id, gateway_ip=None, enable_dhcp=False, **reach)
    sdk.compute.create_flavor(name="small", ram=3072, vcpus=2, disk=0)
    sdk.compute.create_keypair(name="me", public_key=(place / "client_key.pub").read_text())
