"""Virtual machines of OpenStack Nova; user data travels by config drive."""
# ruff: noqa: ANN401 (the types of openstacksdk, which is optional)

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from provisioning.clouds.base import TAG, Cloud, CloudOptions, Making, failure, library, resolved, until_gone
from suite.request.option import about

LIMITED = {"cpu": "its CPU time", "disk": "its disk", "vif": "its network"}
"""What the extra specs ``quota:KIND_...`` of a flavor limit, by kind."""
NO_LIMITS = ("quota:cpu_period", "quota:cpu_shares", "quota:cpu_shares_level", "quota:cpu_shares_share")
"""The period of a quota that stands by itself, and weights, which dedicated CPUs have no use for."""
_OF_IMAGE = ("hw_cpu_policy", "hw_cpu_thread_policy")
"""Properties of an image that its class has as attributes, and not among the others."""
SMALL_PAGES = ("small", "any", "4", "4kb", "4kib")


class NovaOptions(CloudOptions):
    """Cloud nova."""

    image: str = about(..., "Image, by name or ID.")
    flavor: str = about(..., "Flavor, by name or ID.")
    network: str = about(..., "Network whose addresses this machine can reach, by name or ID.")
    key: str = about(..., "Key pair in the cloud, by name; ssh here has the private key.")
    on_host: str | None = about(None, "Compute host to run on, which most clouds allow administrators alone.")


class Nova(Cloud):
    options = NovaOptions
    targets = ("vm", "container-vm")
    ready_within = "15m"

    def look_up(self, sdk: Any, options: NovaOptions) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        image = resolved("image", options.image, sdk.image.find_image)
        flavor = resolved("flavor", options.flavor, sdk.compute.find_flavor)
        network = resolved("network", options.network, sdk.network.find_network)
        key = resolved("keypair", options.key, sdk.compute.find_keypair)
        chosen = {name: getattr(image, name) for name in _OF_IMAGE}
        of_image = {**(image.properties or {}), **chosen}
        specs = {}
        for name, value in of_image.items():
            if value:
                specs[name.replace("_", ":", 1)] = value
        try:
            specs |= sdk.compute.fetch_flavor_extra_specs(flavor).extra_specs
            unfair = tuple(f"flavor {flavor.name}: {words}" for words in _unfair(specs))
        except library("openstack.exceptions").ForbiddenException:
            unfair = (f"flavor {flavor.name}: the cloud does not show its extra specs",)
        body = {
            "image_id": image.id,
            "flavor_id": flavor.id,
            "key_name": key.name,
            "networks": [{"uuid": network.id}],
        }
        if options.on_host:
            body["host"] = options.on_host
        return body, unfair

    def make(self, sdk: Any, name: str, body: Mapping[str, Any], user_data: str) -> Making:
        drive: dict[str, Any] = {}
        if user_data:
            encoded = base64.b64encode(user_data.encode())
            drive = {"config_drive": True, "user_data": encoded.decode()}
        requested = sdk.compute.create_server(name=name, metadata={TAG: name}, **drive, **body)
        yield "scheduled", "accepted"
        server = sdk.compute.get_server(requested.id)
        while server.status != "ACTIVE":
            if server.status == "ERROR":
                raise failure(f"{name}: {_words(server)}")
            state = "scheduled" if server.task_state == "scheduling" else "built"
            yield state, _words(server)
            server = sdk.compute.get_server(requested.id)
        addresses = []
        for items in (server.addresses or {}).values():
            addresses += [(item["version"], item["addr"]) for item in items]
        if not addresses:
            raise failure(f"{name} is {_words(server)} without an address", "see the subnets of the network")
        _, address = min(addresses)
        return str(address)

    def state(self, sdk: Any, name: str) -> str:
        return ", ".join(map(_words, _servers(sdk, name))) or "gone"

    def remove(self, sdk: Any, name: str) -> None:
        for server in _servers(sdk, name):
            sdk.compute.delete_server(server)
        until_gone(lambda: ", ".join(map(_words, _servers(sdk, name))))


def _servers(sdk: Any, name: str) -> list[Any]:
    """Return the servers with this name and tag; a request whose answer was lost may have made one."""
    servers = sdk.compute.servers(name=f"^{name}$")
    return [server for server in servers if server.metadata.get(TAG) == name]


def _words(server: Any) -> str:
    words = str(server.status)
    if server.task_state:
        words += f" ({server.task_state})"
    fault = (server.fault or {}).get("message")
    if fault:
        words += f": {fault}"
    return words


def _unfair(specs: Mapping[str, str]) -> Iterator[str]:
    """Yield what extra specs of a flavor, and properties of an image, leave to chance."""
    policy = specs.get("hw:cpu_policy", "" if "resources:PCPU" in specs else "shared")
    is_dedicated = policy in ("", "dedicated")
    if not is_dedicated:
        yield f"hw:cpu_policy is {policy} and not dedicated: other machines may use its CPUs"
    threads = specs.get("hw:cpu_thread_policy", "prefer")
    if is_dedicated and threads != "isolate":
        yield f"hw:cpu_thread_policy is {threads} and not isolate: its CPUs may be hardware threads of the same cores"
    virtual = specs.get("resources:VCPU")
    if virtual:
        yield f"resources:VCPU is {virtual}: other machines may use these CPUs"
    pages = str(specs.get("hw:mem_page_size", "small"))
    if pages.lower() in SMALL_PAGES:
        yield f"no huge pages: hw:mem_page_size is {pages}"
    nodes = str(specs.get("hw:numa_nodes", "1"))
    if nodes != "1":
        yield f"hw:numa_nodes is {nodes}: its CPUs and memory are on several NUMA nodes"
    for name, value in specs.items():
        if not name.startswith("quota:") or name in NO_LIMITS:
            continue
        kind = name.removeprefix("quota:").partition("_")[0]
        if kind in LIMITED:
            yield f"{name} is {value}: the cloud limits {LIMITED[kind]}"


NOVA = Nova()
