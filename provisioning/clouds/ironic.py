"""Bare metal of OpenStack Ironic: a node is allocated by its resource class, deployed, and released."""
# ruff: noqa: ANN401 (the types of openstacksdk, which is optional)

import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from provisioning.clouds.base import TAG, Cloud, CloudOptions, Making, failure, resolved, until_gone
from suite.errors import RequestError
from suite.request.option import about, given

FAILED = ("deploy failed", "error")
RELEASABLE = ("active", "wait call-back", "deploy hold", *FAILED)
"""The states in which Ironic lets a node be undeployed."""
REASON_WITHIN_S = 20.0
"""The longest that Ironic takes to write why a deployment failed: it first powers the node off."""
NO_REASON = "Ironic gives no reason"


class IronicOptions(CloudOptions):
    """Cloud ironic."""

    resource_class: str = about(..., "Resource class of the nodes.")
    image: str | None = about(
        None,
        "Whole-disk image, which gets a config drive: a URL, or a name or ID of the cloud's.",
        needs=(given("public_key"), given("host_key")),
        excludes=(given("kernel"),),
    )
    checksum: str | None = about(None, "SHA-256 of an image that a URL names.", needs=(given("image"),))
    public_key: Path | None = about(None, "File of the public SSH key that root accepts.", needs=(given("image"),))
    kernel: str | None = about(None, "URL of the kernel, to boot a ramdisk.", needs=(given("ramdisk"),))
    ramdisk: str | None = about(None, "URL of a ramdisk that accepts your SSH key.", needs=(given("host_key"),))
    kernel_arguments: str | None = about(None, "Command line of the kernel.", needs=(given("kernel"),))
    network: str | None = about(None, "Network of the nodes, by name or ID.", excludes=(given("address"),))
    address: str | None = about(None, "Address at which the one machine answers, if the cloud assigns none.")


class Ironic(Cloud):
    options = IronicOptions
    targets = ("bare-metal", "container")
    ready_within = "1h"

    def look_up(self, sdk: Any, options: IronicOptions) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        if not options.network and (not options.address or options.count > 1):
            remedy = "give --network; --address for a single one"
            raise RequestError("the address of each machine is unknown", remedy=remedy)
        body: dict[str, Any] = {"resource_class": options.resource_class, "address": options.address}
        if options.network:
            network = resolved("network", options.network, sdk.network.find_network)
            body["network"] = network.id
        if options.kernel:
            instance = {"kernel": options.kernel, "ramdisk": options.ramdisk}
            if options.kernel_arguments:
                instance["ramdisk_kernel_arguments"] = options.kernel_arguments
            return {**body, "instance_info": instance}, ()
        keys = {}
        if options.public_key:
            keys = {TAG: options.public_key.read_text().strip()}
        body["instance_info"] = _disk(sdk, options)
        body["meta_data"] = {"public_keys": keys}
        return body, ()

    def make(self, sdk: Any, name: str, body: Mapping[str, Any], user_data: str) -> Making:
        metal = sdk.baremetal
        address = body["address"]
        requested = metal.create_allocation(name=name, resource_class=body["resource_class"], extra={TAG: name})
        yield "scheduled", "accepted"
        allocation = metal.get_allocation(requested.id)
        while allocation.state != "active":
            if allocation.state == "error":
                raise failure(f"{name}: {allocation.last_error}")
            yield "scheduled", str(allocation.state)
            allocation = metal.get_allocation(requested.id)
        node = metal.get_node(allocation.node_id)
        if "network" in body:
            port = sdk.network.create_port(network_id=body["network"], name=name, description=TAG)
            metal.attach_vif_to_node(node, port.id)
            address = port.fixed_ips[0]["ip_address"]
        metal.update_node(node, instance_info=body["instance_info"])
        metal.validate_node(node)
        drive = None
        if "meta_data" in body:
            names = {"uuid": node.id, "name": name, "hostname": name}
            metadata = {**names, **body["meta_data"]}
            drive = {"meta_data": metadata, "user_data": user_data}
        metal.set_node_provision_state(node, "active", config_drive=drive)
        yield "built", "accepted"
        yield from _deployed(metal, node.id, name)
        return str(address)

    def state(self, sdk: Any, name: str) -> str:
        allocation = _allocation(sdk.baremetal, name)
        if allocation and allocation.node_id:
            return _words(sdk.baremetal.get_node(allocation.node_id))
        return "gone"

    def remove(self, sdk: Any, name: str) -> None:
        metal = sdk.baremetal
        released = set()

        def remaining() -> str:
            allocation = _allocation(metal, name)
            if allocation is None:
                return ""
            node = None
            if allocation.node_id:
                node = metal.get_node(allocation.node_id)
            if node is None or node.allocation_id != allocation.id or node.provision_state == "available":
                metal.delete_allocation(allocation)
                return "its allocation is being deleted"
            if node.provision_state in RELEASABLE and node.id not in released:
                released.add(node.id)
                metal.set_node_provision_state(node, "deleted")
            elif node.provision_state == "error":
                raise failure(_words(node))
            return _words(node)

        until_gone(remaining)
        if sdk.endpoint_for("network"):
            for port in sdk.network.ports(name=name, description=TAG):
                sdk.network.delete_port(port)


def _disk(sdk: Any, options: IronicOptions) -> dict[str, str]:
    """Return the instance's information for a whole-disk image. Raises RequestError."""
    if not options.image:
        raise RequestError("no system to deploy", remedy="give --image, or --kernel with --ramdisk")
    if "://" not in options.image:
        image = resolved("image", options.image, sdk.image.find_image)
        return {"image_source": image.id, "image_type": "whole-disk"}
    if not options.checksum:
        raise RequestError("--image is a URL without --checksum", remedy="give the SHA-256 of the image")
    return {
        "image_source": options.image,
        "image_type": "whole-disk",
        "image_os_hash_algo": "sha256",
        "image_os_hash_value": options.checksum,
    }


def _deployed(metal: Any, node_id: str, name: str) -> Generator[tuple[str, str], None, None]:
    """Wait for the deployment. Raises CloudError with the error of the node, which comes late and goes early."""
    error = ""
    failed_s = 0.0
    node = metal.get_node(node_id)
    while node.provision_state != "active":
        error = node.last_error or error
        if node.provision_state in FAILED:
            failed_s = failed_s or time.monotonic()
            error = error or _last_event(metal, node_id)
            if error or time.monotonic() - failed_s > REASON_WITHIN_S:
                reason = "" if node.last_error else f": {error or NO_REASON}"
                raise failure(f"{name}: {_words(node)}{reason}")
        yield "built", _words(node)
        node = metal.get_node(node_id)


def _last_event(metal: Any, node_id: str) -> str:
    """Return the last error in a node's history, where no power action clears it; empty before API 1.78."""
    answer = metal.get(f"/nodes/{node_id}/history", microversion="1.78")
    events = []
    if answer.status_code == 200:
        events = answer.json().get("history", [])
    failures = (str(item["event"]) for item in reversed(events) if item["severity"] == "ERROR")
    return next(failures, "")


def _allocation(metal: Any, name: str) -> Any:
    """Return the allocation with this name and tag; None if there is none."""
    for allocation in metal.allocations():
        tag = (allocation.extra or {}).get(TAG)
        if allocation.name == name == tag:
            return allocation
    return None


def _words(node: Any) -> str:
    words = f"node {node.name or node.id} is {node.provision_state}"
    if node.last_error:
        words += f": {node.last_error}"
    return words


IRONIC = Ironic()
