"""A registry that holds one image, as the nodes of the cluster pull it: over HTTP, read from its archive."""

import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfileobj

from tests.kubernetes_cluster.layout import REGISTRY

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class Registry:
    manifest: str
    """The digest of the image's manifest."""
    asked: list[str] = field(default_factory=list)
    """The paths that were asked for, in order."""


@contextmanager
def serving(archive: Path) -> Iterator[Registry]:
    """Serve the only image of an OCI archive under every name, at the address ``REGISTRY``."""
    with tarfile.open(archive) as opened:
        index = opened.extractfile("index.json")
        assert index is not None
        registry = Registry(json.load(index)["manifests"][0]["digest"])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            registry.asked.append(self.path)
            *_, kind, name = self.path.split("/")
            digest = name if kind == "blobs" else registry.manifest
            if self.path == "/v2/":
                self._answer("application/json", 2)
                self.wfile.write(b"{}")
                return
            with tarfile.open(archive) as opened:
                member = opened.getmember(f"blobs/{digest.replace(':', '/')}")
                self._answer(MANIFEST if kind == "manifests" else "application/octet-stream", member.size, digest)
                blob = opened.extractfile(member)
                if blob and self.command == "GET":
                    copyfileobj(blob, self.wfile)

        do_HEAD = do_GET  # noqa: N815 (as the library has it)

        def _answer(self, kind: str, size_bytes: int, digest: str = "") -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size_bytes))
            self.send_header("Docker-Content-Digest", digest)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as the library has it)
            """Say nothing."""

    host, _, port = REGISTRY.partition(":")
    with ThreadingHTTPServer((host, int(port)), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield registry
        server.shutdown()
