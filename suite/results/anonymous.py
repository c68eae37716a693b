"""Anonymous copies of records: hosts, users, addresses, paths and names of clusters under consistent names.

A name that occurs in two records is replaced by one pseudonym in both, so that everything that is compared stays equal
or different as it was. Pseudonyms of digests depend on all records of a pack, and cannot be looked up elsewhere.
"""

import getpass
import hashlib
import ipaddress
import json
import os
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import count, islice
from typing import Any

from suite import registries
from suite.errors import RequestError
from suite.job.profiles import PROFILES
from suite.registry import Registry
from suite.schema import SCHEMA
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
_NAME_KEYS = {"context", "namespace", "registry", "storage_class", "hire", "inventory", "image"}
"""The keys of what a user has named: clusters, what is in them, machines, images."""
_POD_KEYS = {"others"}
_VERSION_KEYS = {"kernel", "version", "driver"}
"""The keys of four numbers that are no address."""
_REQUESTS = {"request", "sweep", "cells"}
"""The parts whose paths may be relative: what a user wrote."""
_WORK_KEYS = {"model", "data", "unit"}
"""The keys of what is trained; the names of trials are made from it."""
_WORK = re.compile(r"[\w.+-]+")
"""Such a name, which is no path."""
_PATH_KEYS = {"changed"}
"""The keys, outside these, of texts that may have such paths: annotations of a pod, ``example.org/team``."""
_SWEEP_NAME = "name of a sweep"
_NO_PATHS = {"throughput", "unit"}
"""The options with a slash that is no part of a path: a pattern such as ``([0-9.]+) images/s``."""
_OPAQUE = {"png", "trial_id"}
"""The keys of texts in base64, and of names that files have, too."""
_OWN_HOST = re.compile(r"virtbench-[0-9a-f]+|localhost|[\d.]*|sha256")
"""What stands where hosts do and is none: the suite's own, and ``torch@2.13``, ``image@sha256:…``."""
_COMMON_USERS = {"", "root", "nobody"}
_SYSTEM = ("/bin/", "/dev/", "/etc/", "/lib/", "/lib64/", "/proc/", "/sbin/", "/sys/", "/usr/")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'`<>,;]+")
_PATH = re.compile(r"(?:^|(?<=[\s\"'=(,:\[`]))(?:~[\w-]*)?/(?!/)[^\s\"'`,;:)\]]*")
_ANY_PATH = re.compile(r"[^\s:=,]*/[^\s:=,]*")
_HOME = re.compile(r"(?:/home|/Users)/([^/\s\"']+)")
_ACCOUNT = re.compile(r"\b([\w.+-]+)@([\w.-]+)")
_MAC = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:])")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]*:(?:[0-9A-Fa-f:]|\.(?=\d))*(?:%\w+)?(?![\w:])")
_HEX = re.compile(r"[0-9a-f]")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONG_NAME = 4
"""The least characters of a name that is replaced where a hyphen joins it to others, as in ``grafana-alice-0``."""
_NAMES = ("host", "user", "pod", "name")
"""The kinds of what is replaced as a word of a text, too."""
_FORMS = {
    "host": "host-{}",
    "user": "user-{}",
    "pod": "pod-{}",
    "name": "name-{}",
    "path": "/path-{}",
    "url": "https://url-{}.example",
    "MAC address": "02:00:00:00:00:{:02x}",
    "IPv6 address": "2001:db8::{:x}",  # RFC 3849, for documentation
}
_KEYS = {"host": _HOST_KEYS, "pod": _POD_KEYS, "name": _NAME_KEYS}
"""The keys whose whole values are names of a kind."""
_KNOWN_AGAIN = 1000
"""The pseudonyms of a kind that are known as such in a pack that is packed again."""
_ADDRESSES = ipaddress.ip_network("198.18.0.0/15")
"""A network for benchmarks, RFC 2544."""


class Anonymiser:
    """Replaces what identifies people and machines in the values of JSON texts, the same by the same."""

    def __init__(self, values: Sequence[Any]) -> None:
        """Collect hosts and users from all values that are published together; equal ones get equal pseudonyms."""
        self._salt = hashlib.sha256(repr(values).encode(errors="backslashreplace")).digest()
        self._vocabulary = {*TARGETS, *PROFILES, *_members(), *_words_of_records()}
        self._pseudonyms: dict[str, dict[str, str]] = {}
        for value in values:
            self._learn(value)
        self._learn_host(socket.gethostname())
        for name in (getpass.getuser(), os.environ.get("SUDO_USER", "")):
            self._learn_user(name)
        self._names = self._names_in_text()
        self._in_text = _any_of(self._names)

    def _learn(self, value: Any, key: str = "") -> None:  # noqa: ANN401 (any value of JSON)
        if isinstance(value, dict):
            self._vocabulary.update(value)
            for name, item in value.items():
                self._learn(item, _role(key, name))
        elif isinstance(value, list):
            for item in value:
                self._learn(item, key)
        elif isinstance(value, str):
            self._learn_text(value, key)

    def _learn_text(self, text: str, key: str) -> None:
        if key in _HOST_KEYS:
            self._learn_host(text)
        elif key in _WORK_KEYS and _WORK.fullmatch(text):
            self._vocabulary.add(text)
        elif key in _POD_KEYS:
            self._pseudonym("pod", text)
        elif key in _NAME_KEYS and not _DIGEST.fullmatch(text):
            self._pseudonym("name", text)
        for user in _HOME.findall(text):
            self._learn_user(user)
        for user, host in _ACCOUNT.findall(text):
            if not _OWN_HOST.fullmatch(host):
                self._learn_user(user)
                self._learn_host(host)

    def _learn_host(self, name: str) -> None:
        """Learn the name of a host, and its domain, which other names may have."""
        _, _, domain = name.partition(".")
        for host in (name, domain if "." in domain else ""):
            if not _OWN_HOST.fullmatch(host):
                self._pseudonym("host", host)

    def _learn_user(self, name: str) -> None:
        if name not in _COMMON_USERS:
            self._pseudonym("user", name)

    def _names_in_text(self) -> dict[str, str]:
        """Return the names that are replaced wherever they stand: all that are no word of the suite or of a record."""
        names = {}
        for kind in _NAMES:
            for name, pseudonym in self._pseudonyms.get(kind, {}).items():
                if name not in self._vocabulary and name != pseudonym:
                    names[name] = pseudonym
        return names

    def _pseudonym(self, kind: str, text: str) -> str:
        known = self._pseudonyms.setdefault(kind, {})
        if text not in known:
            known[text] = _new_pseudonym(kind, text, {*known.values()})
        return known[text]

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
        if key == _SWEEP_NAME:
            return "sweep"
        for kind, keys in _KEYS.items():
            if key in keys and text in self._pseudonyms.get(kind, {}):
                return self._pseudonym(kind, text)
        if key in _ID_KEYS and len(text) >= _LEAST_ID:
            return self._digits(text)
        if key == "image_id":
            image, separator, digest = text.partition("@")
            return f"{self._pseudonym('name', image)}{separator}{digest}"
        if text in self._vocabulary:
            return text
        return self._replaced_parts(text, key, any_path=(of_user and key not in _NO_PATHS) or key in _PATH_KEYS)

    def _replaced_parts(self, text: str, key: str, *, any_path: bool) -> str:
        """Return a text with its URLs, paths, addresses and names replaced."""
        text = _URL.sub(lambda match: self._pseudonym("url", match[0]), text)
        paths = _ANY_PATH if any_path else _PATH
        text = paths.sub(lambda match: self._path(match[0]), text)
        text = _MAC.sub(lambda match: self._pseudonym("MAC address", match[0]), text)
        if key not in _VERSION_KEYS:
            text = _IPV4.sub(lambda match: self._address(match[0], "IPv4 address"), text)
        text = _IPV6.sub(lambda match: self._address(match[0], "IPv6 address"), text)
        return self._in_text.sub(lambda match: self._names[match[1]], text)

    def _path(self, path: str) -> str:
        if path == "/" or path.startswith(_SYSTEM):
            return path
        return self._pseudonym("path", path)

    def _address(self, text: str, kind: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified:
            return text
        return self._pseudonym(kind, text)

    def _digits(self, text: str) -> str:
        """Return a text of the same form with other hexadecimal digits."""
        digits = iter(hashlib.sha512(self._salt + text.encode()).hexdigest())
        return _HEX.sub(lambda _: next(digits, "0"), text)

    def refuse_remains(self, name: str, content: bytes) -> None:
        """Raise RequestError if a file holds what was to be replaced."""
        text = content.decode(errors="replace").replace("\\n", "\n")
        remaining = next(self._remains(text), None)
        if remaining is not None:
            raise RequestError(
                f"{name} would still hold {remaining!r}: nothing was packed",
                remedy="report it with this message; pack without --anonymous where names may be published",
            )

    def _remains(self, text: str) -> Iterator[str]:
        for match in self._in_text.finditer(text):
            yield match[1]
        for kind in self._pseudonyms.keys() - _NAMES:
            for replaced, pseudonym in self._pseudonyms[kind].items():
                if replaced == pseudonym:
                    continue
                # A relative path, such as images/s, may stand elsewhere and be none.
                if (kind != "path" or replaced.startswith(("/", "~"))) and _whole(replaced).search(text):
                    yield replaced


def _new_pseudonym(kind: str, text: str, taken: Collection[str]) -> str:
    """Return the first free pseudonym of a kind; a text that is one already, as in an anonymous pack, stays."""
    if text in _first_pseudonyms(kind) and text not in taken:
        return text
    return next(pseudonym for pseudonym in _pseudonyms_of(kind) if pseudonym not in taken)


@cache
def _first_pseudonyms(kind: str) -> frozenset[str]:
    return frozenset(islice(_pseudonyms_of(kind), _KNOWN_AGAIN))


def _pseudonyms_of(kind: str) -> Iterator[str]:
    for number in count(1):
        yield str(_ADDRESSES[number]) if kind == "IPv4 address" else _FORMS[kind].format(number)


def _members() -> Iterator[str]:
    """Yield the names of workloads, scenarios, engines and all else that the suite has a registry of."""
    for registry in vars(registries).values():
        if isinstance(registry, Registry):
            yield from registry


def _words_of_records() -> Iterator[str]:
    """Yield the keys and constants of records, and the stems of pseudonyms: they are no names outside their fields."""
    yield from ("host", "user", "pod", "name", "path", "url")
    yield from _words_of(json.loads(SCHEMA.read_text(encoding="utf-8")))


def _words_of(schema: Any) -> Iterator[str]:  # noqa: ANN401 (any value of JSON)
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        constants = [*schema.get("enum", ()), schema.get("const")]
        yield from (word for word in constants if isinstance(word, str))
        for part in schema.values():
            yield from _words_of(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _words_of(part)


def _role(key: str, name: str) -> str:
    """Return the key by which a value is treated: names and addresses of machines are those of hosts."""
    if (key, name) == ("sweep", "name"):
        return _SWEEP_NAME
    return _HOST if key in _MACHINE_LISTS and name in _MACHINE_KEYS else name


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of names as words, with the domain that may follow a host; its group is the name."""
    alternatives = []
    for name in sorted(names, key=len, reverse=True):
        word = re.escape(name)
        alternatives.append(word if len(name) >= _LONG_NAME else rf"(?<![\w-]){word}(?![\w-])")
    if not alternatives:
        return re.compile("(?!)()")
    return re.compile(rf"(?<![A-Za-z0-9])({'|'.join(alternatives)})(?:\.[A-Za-z][\w-]*)*(?![A-Za-z0-9])")


def _whole(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){re.escape(text)}(?![\w.-])")
