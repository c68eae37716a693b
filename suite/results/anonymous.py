"""Anonymous copies of records: hosts, users, addresses and paths under consistent names.

A name that occurs in two records is replaced by one pseudonym in both, so that everything that is compared stays equal
or different as it was. Pseudonyms of digests depend on all records of a pack, and cannot be looked up elsewhere.
"""

import getpass
import hashlib
import ipaddress
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from suite.errors import RequestError
from suite.registries import ENGINES, PROBES, SCENARIOS, WORKLOADS
from suite.targets import TARGETS

_HOST = "hostname"
_HOST_KEYS = {_HOST, "machine", "node", "host"}
_MACHINE_LISTS = {"machines", "nodes"}
_MACHINE_KEYS = {"name", "address"}
"""The keys, in a list of machines, whose values are those of hosts."""
_ID_KEYS = {"machine_id", "machine_key", "boot_id", "uuid", "gpus"}
"""The keys of digests and numbers of one machine or device; ``gpus`` of a job is a list of UUIDs."""
_LEAST_ID = 8
"""The characters of the shortest of these; ``0`` is the index of a GPU."""
_REQUESTS = {"request", "sweep", "cells"}
"""The parts whose paths may be relative: what a user wrote."""
_NO_PATHS = {"throughput", "unit"}
"""The options with a slash that is no part of a path: a pattern such as ``([0-9.]+) images/s``."""
_OPAQUE = {"png"}
"""The keys of texts in base64."""
_OWN_HOST = re.compile(r"virtbench-[0-9a-f]+|localhost|")
_COMMON_USERS = {"", "root", "nobody"}
_SYSTEM = ("/bin/", "/dev/", "/etc/", "/lib/", "/lib64/", "/proc/", "/sbin/", "/sys/", "/usr/")
_PATH = re.compile(r"(?:^|(?<=[\s\"'=(,:\[`]))(?:~[\w-]*)?/(?!/)[^\s\"'`,;:)\]]*")
_ANY_PATH = re.compile(r"[^\s:=,]*/[^\s:=,]*")
_ACCOUNT = re.compile(r"(?:/home|/Users)/([^/\s\"']+)|\b([\w.-]+)@(?=[\w.-])")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_HEX = re.compile(r"[0-9a-f]")


class Anonymiser:
    """Replaces what identifies people and machines in the values of JSON texts, the same by the same."""

    def __init__(self, values: Sequence[Any]) -> None:
        """Collect hosts and users from all values that are published together; equal ones get equal pseudonyms."""
        self._salt = hashlib.sha256(repr(values).encode(errors="backslashreplace")).digest()
        self._vocabulary = {*TARGETS, *ENGINES, *PROBES, *SCENARIOS, *WORKLOADS}
        self._hosts: dict[str, str] = {}
        self._users: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        for value in values:
            self._learn(value)
        self._learn_host(socket.gethostname())
        for name in (getpass.getuser(), os.environ.get("SUDO_USER", "")):
            self._learn_user(name)

    def _learn(self, value: Any, key: str = "") -> None:  # noqa: ANN401 (any value of JSON)
        if isinstance(value, dict):
            self._vocabulary.update(value)
            for name, item in value.items():
                self._learn(item, _role(key, name))
        elif isinstance(value, list):
            for item in value:
                self._learn(item, key)
        elif isinstance(value, str):
            if key in _HOST_KEYS:
                self._learn_host(value)
            for home, account in _ACCOUNT.findall(value):
                self._learn_user(home or account)

    def _learn_host(self, name: str) -> None:
        if not _OWN_HOST.fullmatch(name):
            self._hosts.setdefault(name, f"host-{len(self._hosts) + 1}")

    def _learn_user(self, name: str) -> None:
        if name not in _COMMON_USERS:
            self._users.setdefault(name, f"user-{len(self._users) + 1}")

    def replaced(self, value: Any, key: str = "", *, of_user: bool = False) -> Any:  # noqa: ANN401
        """Return a value without what identifies. ``of_user``: it is part of a request, with paths of any form."""
        if isinstance(value, dict):
            return {
                name: self.replaced(item, _role(key, name), of_user=of_user or name in _REQUESTS)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self.replaced(item, key, of_user=of_user) for item in value]
        return self._text(value, key, of_user=of_user) if isinstance(value, str) else value

    def _text(self, text: str, key: str, *, of_user: bool) -> str:
        if key in _OPAQUE:
            return text
        if key in _HOST_KEYS and text in self._hosts:
            return self._hosts[text]
        if key in _ID_KEYS and len(text) >= _LEAST_ID:
            return self._digits(text)
        if text in self._vocabulary:
            return text
        paths = _ANY_PATH if of_user and key not in _NO_PATHS else _PATH
        text = paths.sub(lambda match: self._path(match[0]), text)
        text = _ADDRESS.sub(lambda match: self._address(match[0]), text)
        for name, pseudonym in self._words():
            if name in text:
                text = _word(name).sub(pseudonym, text)
        return text

    def _words(self) -> Iterator[tuple[str, str]]:
        """Yield the names that are replaced wherever they stand: those that are no word of the suite or of a record."""
        names = {**self._hosts, **self._users}
        for name in sorted(names, key=len, reverse=True):
            if name not in self._vocabulary:
                yield name, names[name]

    def _path(self, path: str) -> str:
        if path == "/" or path.startswith(_SYSTEM):
            return path
        return self._paths.setdefault(path, f"/path-{len(self._paths) + 1}")

    def _address(self, address: str) -> str:
        with suppress(ValueError):
            if ipaddress.ip_address(address).is_global:
                number = len(self._addresses) + 1
                # A network for benchmarks, RFC 2544.
                return self._addresses.setdefault(address, f"198.18.{number >> 8}.{number & 255}")
        return address

    def _digits(self, text: str) -> str:
        """Return a text of the same form with other hexadecimal digits."""
        digits = iter(hashlib.sha512(self._salt + text.encode()).hexdigest())
        return _HEX.sub(lambda _: next(digits, "0"), text)

    def refuse_remains(self, name: str, content: bytes) -> None:
        """Raise RequestError if a file holds what was to be replaced."""
        text = content.decode(errors="replace")
        words = [word for word, _ in self._words() if _word(word).search(text)]
        paths = [path for path in self._paths if path.startswith(("/", "~")) and _whole_path(path).search(text)]
        if words or paths:
            raise RequestError(
                f"{name} would still hold {(words + paths)[0]!r}: nothing was packed",
                remedy="report it with this message; pack without --anonymous where names may be published",
            )


def _role(key: str, name: str) -> str:
    """Return the key by which a value is treated: names and addresses of machines are those of hosts."""
    return _HOST if key in _MACHINE_LISTS and name in _MACHINE_KEYS else name


def _word(name: str) -> re.Pattern[str]:
    """Return a pattern of a name as a whole word, with the domain that may follow a host."""
    return re.compile(rf"(?<![\w-]){re.escape(name)}(?:\.[A-Za-z][\w-]*)*(?![\w-])")


def _whole_path(path: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){re.escape(path)}(?![\w.-])")
