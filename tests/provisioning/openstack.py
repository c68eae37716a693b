"""A small OpenStack on the loopback interface: keystone, glance, neutron, nova and ironic, as openstacksdk calls them.

The bodies are those of Zed (keystone 22, glance 25, nova 26.2.2, neutron 21) and Ironic 39, as far as they
are read; the words of refusals are recorded ones.
"""

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answer = tuple[int, dict[str, Any] | str]
"""A status and a body, of which a text is a page."""
Body = dict[str, Any]
PASSWORD = "a-very-secret-password"
TOKEN = "gAAAA-a-secret-token"


def refused(status: int, message: str, kind: str = "badRequest") -> Answer:
    return status, {kind: {"code": status, "message": message}}


def of_ironic(status: int, message: str) -> Answer:
    return status, {"error_message": {"faultcode": "Client", "faultstring": message, "debuginfo": None}}


@dataclass
class OpenStack:
    """The state of all services; tests change it, and replace the answers of single requests by ``instead``."""

    url: str = ""
    asked: list[tuple[str, str, Body]] = field(default_factory=list)
    """Method, path and body of every request."""
    instead: list[tuple[str, str, Callable[[Body], Answer | None]]] = field(default_factory=list)
    """Method, pattern of a path, and what answers in place of the service unless it returns None."""
    password: str = PASSWORD
    images: dict[str, Body] = field(default_factory=dict)
    flavors: dict[str, Body] = field(default_factory=dict)
    specs: dict[str, str] = field(default_factory=dict)
    networks: dict[str, Body] = field(default_factory=dict)
    keypairs: dict[str, Body] = field(default_factory=dict)
    servers: dict[str, Body] = field(default_factory=dict)
    course: list[Body] = field(default_factory=list)
    """What a server turns into, one state for each look at it."""
    nodes: dict[str, Body] = field(default_factory=dict)
    allocations: dict[str, Body] = field(default_factory=dict)
    ports: dict[str, Body] = field(default_factory=dict)
    deployment: list[Body] = field(default_factory=list)
    """What a node that is deployed turns into, one state for each look at it."""
    history: list[Body] = field(default_factory=list)
    vifs: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, query: str, body: Body) -> Answer:
        self.asked.append((method, path, body))
        for verb, pattern, function in self.instead:
            if verb == method and re.fullmatch(pattern, path) and (answer := function(body)):
                return answer
        service, _, rest = path.lstrip("/").partition("/")
        return getattr(self, f"_{service}")(method, rest.strip("/"), query, body)  # type: ignore[no-any-return]

    def _identity(self, method: str, path: str, _query: str, body: Body) -> Answer:
        if method == "POST" and path == "v3/auth/tokens":
            if body["auth"]["identity"]["password"]["user"]["password"] != self.password:
                return refused(401, "The request you have made requires authentication.", "error")
            places = {"compute": "compute/v2.1", **{name: name for name in ("image", "network", "baremetal")}}
            public = {"interface": "public", "region": "R", "region_id": "R"}
            urls = {kind: public | {"id": kind, "url": f"{self.url}/{place}"} for kind, place in places.items()}
            catalog = [{"type": kind, "name": kind, "id": kind, "endpoints": [url]} for kind, url in urls.items()]
            project = {"id": "p", "name": "p", "domain": {"id": "default", "name": "Default"}}
            user = {"id": "u", "name": "u", "domain": {"id": "default", "name": "Default"}}
            rest = {"expires_at": "2099-01-01T00:00:00.000000Z", "issued_at": "2026-01-01T00:00:00.000000Z"}
            token = {"methods": ["password"], "user": user, "project": project, "catalog": catalog, "roles": []}
            return 201, {"token": token | rest}
        links = [{"rel": "self", "href": f"{self.url}/identity/v3/"}]
        version = {"id": "v3.14", "status": "stable", "links": links, "media-types": []}
        return 200, {"version": version} if path else {"versions": {"values": [version]}}

    def _image(self, _method: str, path: str, query: str, _body: Body) -> Answer:
        if not path:
            links = [{"rel": "self", "href": f"{self.url}/image/v2/"}]
            return 300, {"versions": [{"id": "v2.15", "status": "CURRENT", "links": links}]}
        return self._found(self.images, path.removeprefix("v2/"), query, "images", alone=True)

    def _network(self, method: str, path: str, query: str, body: Body) -> Answer:
        if not path:
            links = [{"rel": "self", "href": f"{self.url}/network/v2.0/"}]
            return 200, {"versions": [{"id": "v2.0", "status": "CURRENT", "links": links}]}
        path = path.removeprefix("v2.0/")
        if method == "POST":
            made = {"id": str(uuid.uuid4()), "fixed_ips": [{"ip_address": "127.0.0.1"}], **body["port"]}
            self.ports[made["id"]] = made
            return 201, {"port": made}
        if method == "DELETE":
            del self.ports[path.rpartition("/")[2]]
            return 204, {}
        kind = path.partition("/")[0]
        return self._found(self.ports if kind == "ports" else self.networks, path, query, kind)

    def _compute(self, method: str, path: str, query: str, body: Body) -> Answer:
        path = path.removeprefix("v2.1").strip("/")
        if not path:
            version = {"id": "v2.1", "status": "CURRENT", "version": "2.93", "min_version": "2.1", "links": []}
            return 200, {"version": version}
        if path.endswith("os-extra_specs"):
            return 200, {"extra_specs": self.specs}
        if method == "POST" and path == "servers":
            name = str(uuid.uuid4())
            made = {"id": name, "status": "BUILD", "OS-EXT-STS:task_state": "scheduling", "addresses": {}}
            self.servers[name] = {**made, "metadata": {}, **body["server"], "looks": list(self.course)}
            return 202, {"server": {"id": name, "links": [], "adminPass": "another-secret"}}
        if method == "DELETE":
            del self.servers[path.rpartition("/")[2]]
            return 204, {}
        kind = path.split("/")[0]
        server = self.servers.get(path.partition("servers/")[2])
        if server and server["looks"]:
            server.update(server["looks"].pop(0))
        found = {"servers": self.servers, "flavors": self.flavors, "os-keypairs": self.keypairs}[kind]
        if kind == "os-keypairs":
            name = path.partition("/")[2]
            if not name:
                return 200, {"keypairs": [{"keypair": item} for item in found.values()]}
            return (200, {"keypair": found[name]}) if name in found else refused(404, f"Keypair {name} not found")
        return self._found(found, path.replace("/detail", ""), query, kind)

    def _baremetal(self, method: str, path: str, _query: str, body: Body) -> Answer:
        links = [{"rel": "self", "href": f"{self.url}/baremetal/v1/"}]
        version = {"id": "v1", "status": "CURRENT", "version": "1.94", "min_version": "1.1", "links": links}
        if path in ("", "v1"):
            return 200, {"id": "v1", "version": version} if path else {"versions": [version]}
        kind, _, rest = path.removeprefix("v1/").partition("/")
        if kind == "allocations":
            return self._allocation(method, rest, body)
        name, _, what = rest.partition("/")
        node = self.nodes[name]
        if method == "PATCH":
            for change in body:
                part, _, key = str(change["path"]).strip("/").partition("/")  # type: ignore[index]
                (node[part] if key else node)[key or part] = change["value"]  # type: ignore[index]
        elif what == "history":
            return 200, {"history": self.history}
        elif what == "validate":
            return 200, {part: {"result": True, "reason": None} for part in ("boot", "deploy", "power")}
        elif what == "vifs":
            self.vifs.append(body["id"])
            return 204, {}
        elif what == "states/provision":
            node |= {
                "provision_state": "deleting",
                "looks": [{"provision_state": "available", "allocation_uuid": None}],
            }
            if body["target"] == "active":
                node |= {"provision_state": "deploying", "looks": list(self.deployment)}
                node["config_drive"] = body.get("configdrive")
            return 202, {}
        elif method == "GET" and node.get("looks"):
            node.update(node["looks"].pop(0))
            if node["allocation_uuid"] is None:
                self.allocations.clear()
        return 200, {key: value for key, value in node.items() if key not in ("looks", "config_drive")}

    def _allocation(self, method: str, name: str, body: Body) -> Answer:
        if method == "POST":
            free = [node for node in self.nodes.values() if node["resource_class"] == body["resource_class"]]
            made = {"uuid": str(uuid.uuid4()), "state": "allocating", "node_uuid": None, "last_error": None, **body}
            words = "Failed to process allocation x for node: no available nodes match the resource class big"
            end: Body = {"state": "error", "last_error": words}
            if free:
                end = {"state": "active", "node_uuid": free[0]["uuid"]}
            self.allocations[made["uuid"]] = {**made, "looks": [{}, end]}
            return 201, made
        if method == "DELETE":
            allocation = self.allocations.pop(name)
            for node in self.nodes.values():
                if node["uuid"] == allocation["node_uuid"]:
                    node["allocation_uuid"] = None
            return 204, {}
        if not name:
            return 200, {"allocations": [*self.allocations.values()]}
        allocation = self.allocations[name]
        allocation.update(allocation["looks"].pop(0) if allocation["looks"] else {})
        if allocation["node_uuid"]:
            self.nodes[allocation["node_uuid"]]["allocation_uuid"] = name
        return 200, allocation

    def _found(self, items: dict[str, Body], path: str, query: str, kind: str, *, alone: bool = False) -> Answer:
        """Answer a request for one item by its ID, or for those with a name."""
        identity = path.partition("/")[2]
        if identity:
            if identity not in items:
                return refused(404, f"{kind} {identity} could not be found.", "itemNotFound")
            return 200, items[identity] if alone else {kind.removesuffix("s"): items[identity]}
        name = re.search(r"(?:^|&)name=([^&]*)", query)
        pattern = name[1].replace("%5E", "^").replace("%24", "$") if name else ".*"
        return 200, {kind: [item for item in items.values() if re.search(pattern, item.get("name", ""))]}


@contextmanager
def openstack(directory: Path) -> Iterator[OpenStack]:
    """Serve the clouds, and write a clouds.yaml of one that is called ``vb``."""
    services = OpenStack()

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def _serve(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            status, answer = services.answer(self.command, path, query, json.loads(text) if text else {})
            page = isinstance(answer, str)
            sent = b"" if status == 204 else answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            if status == 201 and path.endswith("tokens"):
                self.send_header("X-Subject-Token", TOKEN)
            self.send_header("Content-Type", "text/html" if page else "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        services.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        account = {"username": "u", "password": PASSWORD, "project_name": "p"}
        account["auth_url"] = f"{services.url}/identity/v3"
        domains = {"user_domain_id": "default", "project_domain_id": "default"}
        cloud = {"region_name": "R", "auth": {**account, **domains}}
        (directory / "clouds.yaml").write_text(json.dumps({"clouds": {"vb": cloud}}))
        yield services
        server.shutdown()
        thread.join()
