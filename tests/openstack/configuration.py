"""What Keystone, Glance, Placement, Nova and Neutron are told: all on the loopback interface, all data in one place."""

from collections.abc import Iterator, Mapping
from pathlib import Path

REGION = "RegionOne"
SQL_PORT, AMQP_PORT = 3307, 5673
PORTS = {"keystone": 5000, "glance": 9292, "placement": 8778, "nova": 8774, "neutron": 9696}
URLS = {name: f"http://127.0.0.1:{port}" for name, port in PORTS.items()}
URLS |= {"keystone": f"{URLS['keystone']}/v3", "nova": f"{URLS['nova']}/v2.1"}
UPLINK = "vbv0"
"""One end of a cable of this host's that ends in itself. The agent puts it, with the host's address, on a bridge."""
ACCOUNT = {"auth_url": URLS["keystone"], "username": "admin", "password": "admin", "project_name": "admin"} | {
    f"{kind}_domain_id": "default" for kind in ("user", "project")
}

Sections = Mapping[str, Mapping[str, object]]


def sql(database: str) -> dict[str, object]:
    return {"connection": f"mysql+pymysql://os:os@127.0.0.1:{SQL_PORT}/{database}"}


def configurations(place: Path, libvirt: str) -> dict[str, str]:
    """Return the text of each file by its name. ``libvirt``: the URI of its daemon."""
    account = {"auth_type": "password", **ACCOUNT, "region_name": REGION}
    queue = {"transport_url": f"rabbit://guest:guest@127.0.0.1:{AMQP_PORT}/", "host": "compute"}
    logs = {"log_dir": place / "log", "state_path": place / "state"}
    common: Sections = {
        "keystone_authtoken": {"www_authenticate_uri": URLS["keystone"], **account},
        "oslo_concurrency": {"lock_path": place / "locks"},
        "oslo_messaging_rabbit": {"heartbeat_in_pthread": False},
        "oslo_policy": {"enforce_scope": False},
    }

    def helper(name: str) -> dict[str, object]:
        return {"helper_command": f"privsep-helper --config-file {place}/{name}.conf"}

    keystone: Sections = {
        "DEFAULT": {"log_file": place / "log/keystone.log"},
        "database": sql("keystone"),
        "token": {"provider": "fernet"},
        "fernet_tokens": {"key_repository": place / "fernet"},
        "credential": {"key_repository": place / "credential"},
    }
    placement: Sections = {
        **common,
        "DEFAULT": {"log_file": place / "log/placement.log"},
        "placement_database": sql("placement"),
        "api": {"auth_strategy": "keystone"},
    }
    glance: Sections = {
        **common,
        "DEFAULT": {
            "log_file": place / "log/glance.log",
            "bind_host": "127.0.0.1",
            "bind_port": PORTS["glance"],
            "workers": 0,
        },
        "database": sql("glance"),
        "glance_store": {"stores": "file", "default_store": "file", "filesystem_store_datadir": f"{place}/images/"},
        "paste_deploy": {"flavor": "keystone", "config_file": "/etc/glance/glance-api-paste.ini"},
    }
    nova: Sections = {
        **common,
        "DEFAULT": {
            **queue,
            **logs,
            "instances_path": place / "instances",
            "my_ip": "127.0.0.1",
            "compute_driver": "libvirt.LibvirtDriver",
            "use_cow_images": False,
            "vif_plugging_is_fatal": False,
            "vif_plugging_timeout": 0,
            "enabled_apis": "osapi_compute",
            "osapi_compute_listen": "127.0.0.1",
            "osapi_compute_workers": 1,
            "ram_allocation_ratio": 1.0,
            "cpu_allocation_ratio": 4.0,
            "config_drive_format": "iso9660",  # vfat would be mounted, and not every kernel has it
            "mkisofs_cmd": "genisoimage",
        },
        "api": {"auth_strategy": "keystone"},
        "api_database": {**sql("nova_api"), "max_pool_size": 5},
        "database": {**sql("nova"), "max_pool_size": 5},
        "conductor": {"workers": 1},
        "scheduler": {"workers": 1},
        "service_user": {"send_service_user_token": False},
        "placement": account,
        "glance": {"api_servers": URLS["glance"]},
        "neutron": account,
        "libvirt": {
            "virt_type": "qemu",
            "cpu_mode": "host-model",
            "connection_uri": libvirt,
            "images_type": "flat",
            "disk_cachemodes": "file=none",
            "inject_partition": -2,
            "num_pcie_ports": 8,
        },
        "vnc": {"enabled": False},
        "spice": {"enabled": False},
        "privsep_osbrick": helper("nova"),
        "vif_plug_linux_bridge_privileged": helper("nova"),
        "vif_plug_ovs_privileged": helper("nova"),
        "nova_sys_admin": helper("nova"),
        "wsgi": {"api_paste_config": "/etc/nova/api-paste.ini"},
    }
    neutron: Sections = {
        **common,
        "DEFAULT": {
            **queue,
            **logs,
            "bind_host": "127.0.0.1",
            "bind_port": PORTS["neutron"],
            "core_plugin": "ml2",
            "service_plugins": "",
            "api_workers": 0,
            "rpc_workers": 1,
            "rpc_state_report_workers": 0,
            "api_paste_config": "/etc/neutron/api-paste.ini",
            "notify_nova_on_port_status_changes": False,
            "notify_nova_on_port_data_changes": False,
            "dhcp_agent_notification": False,
        },
        "agent": {"root_helper": "env", "report_interval": 10},
        "experimental": {"linuxbridge": True},
        "database": {**sql("neutron"), "max_pool_size": 5},
        "privsep": helper("neutron"),
        # Without port security the agent makes no rules of ebtables-nft, which it could not remove again.
        "ml2": {
            "type_drivers": "flat",
            "tenant_network_types": "",
            "mechanism_drivers": "linuxbridge",
            "extension_drivers": "port_security",
        },
        "ml2_type_flat": {"flat_networks": "phys"},
        "linux_bridge": {"physical_interface_mappings": f"phys:{UPLINK}"},
        "vxlan": {"enable_vxlan": False},
        "securitygroup": {"enable_security_group": False, "firewall_driver": "noop"},
    }
    files = {"keystone": keystone, "placement": placement, "glance": glance, "nova": nova, "neutron": neutron}
    return {name: "\n".join(_lines(sections)) for name, sections in files.items()}


def _lines(sections: Sections) -> Iterator[str]:
    for name, values in sections.items():
        yield from (f"[{name}]", *(f"{key} = {value}" for key, value in values.items()), "")
