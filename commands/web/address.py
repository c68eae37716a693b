"""The address of the pages, which stays the same from server to server: port and token are kept in the home."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from provisioning.paths import home
from suite.errors import RequestError
from suite.results.files import read
from suite.results.store import write_atomic

FILE = "web.json"
USUAL_PORT = 8642
_TOKEN_BYTES = 32


class _Kept(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(extra="forbid")

    port: int
    token: str


@dataclass(frozen=True)
class Address:
    """Where the pages are served, and the secret that opens them."""

    port: int
    token: str


def address(port: int | None, *, new_token: bool) -> Address:
    """Return the kept address, with another port if one is given; port 0 is any free one.

    ``new_token``: draw another token, so that addresses and cookies that were given before open nothing once it is
    kept. Raises RequestError for a file that others may read.
    """
    kept = _kept(home() / FILE)
    token = secrets.token_urlsafe(_TOKEN_BYTES) if new_token or not kept else kept.token
    if port is None:
        port = kept.port if kept else USUAL_PORT
    return Address(port, token)


def keep(used: Address) -> None:
    """Keep an address for the next server; of one on any free port, the token alone. Raises StoreError."""
    file = home() / FILE
    kept = _kept(file)
    port = used.port or (kept.port if kept else USUAL_PORT)
    stored = _Kept(port=port, token=used.token)
    if stored == kept:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    mask = os.umask(0o077)
    try:
        write_atomic(file, stored.model_dump_json())
    finally:
        os.umask(mask)


def _kept(file: Path) -> _Kept | None:
    """Return the content of the file; None if there is none, or if it is not one of this suite."""
    try:
        status = file.lstat()
        content = read(file)
    except FileNotFoundError:
        return None
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise RequestError(
            f"{file}, which holds the token of bench web, is not yours alone",
            remedy=f"remove it, and bench web draws another token: rm {file}",
        )
    try:
        return _Kept.model_validate_json(content)
    except ValidationError:
        return None
