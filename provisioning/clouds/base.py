"""The protocol of a cloud that lends machines, the way to it by openstacksdk, and the meaning of its refusals."""
# ruff: noqa: ANN401 (the types of openstacksdk, which is optional)

import importlib
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from suite.errors import BenchError, RequestError, missing_extra
from suite.job.job import leaves
from suite.registries import CLOUDS
from suite.request.option import Count, OptionGroup, about
from suite.untrusted.parse import JSON_TEXT
from suite.untrusted.terminal import keep_secret, without_secrets

TAG = "virtbench"
"""The key, in a cloud's metadata, whose value is the name in the ledger."""
FORM = rf'\["[a-z][a-z0-9_-]*", {JSON_TEXT}, {JSON_TEXT}, "virtbench-[0-9a-f]{{12}}"\]'
"""A JSON list of four texts; see ``Hired``."""
_OF_SECRETS = re.compile(r"(?i)(password|passcode|secret|token|assertion)$")
"""The keys of a clouds.yaml that hold a secret."""
ANSWERS_WITHIN_S = 60.0
REMOVED_WITHIN_S = 600.0
LOOKED_EVERY_S = 1.0
REMEDIES = {
    "quota": "free some of it, choose a smaller flavor, or ask the cloud for more",
    "no valid host": "choose a flavor for which a host has room, or ask for fewer machines",
    "no available nodes": "wait until a node of this --resource-class is available, or choose another",
    "flavors with zero disk": "choose a flavor whose disk is at least the image's: machines boot from an image here, "
    "not from a volume",
    "disk is too small": "choose a flavor whose disk is at least the image's",
    "policy": "leave out what only an administrator may do, such as --on-host",
}
"""The next step by words of a refusal."""
Making = Generator[tuple[str, str], None, str]
"""Yields the part of the time that runs (of ``hire.PARTS``) and the cloud's word for the state; returns the address."""


class CloudError(BenchError):
    """A cloud refused a request, failed at it, or took too long."""

    kind = "cloud"


class CloudOptions(OptionGroup):
    """Options of every cloud."""

    count: Count = about(1, "Number of machines.")
    user_data: Path | None = about(None, "Shell script for the first boot, such as to install podman.")
    host_key: Path | None = about(
        None, "File with the public SSH host key that the image brings; --user-data is then passed on as it is."
    )


class Cloud(ABC):
    """Lends machines. Every method may raise what ``refusals`` understands."""

    options: ClassVar[type[CloudOptions]] = CloudOptions
    targets: ClassVar[tuple[str, ...]]
    """The targets that its machines are."""
    ready_within: ClassVar[str]

    @abstractmethod
    def look_up(self, sdk: Any, options: Any) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the body of a request, and what makes the machines unfair to compare; nothing is made.

        Raises RequestError for a name that the cloud does not have.
        """

    @abstractmethod
    def make(self, sdk: Any, name: str, body: Mapping[str, Any], user_data: str) -> Making:
        """Make a machine with this name and tag."""

    @abstractmethod
    def state(self, sdk: Any, name: str) -> str:
        """Return the cloud's word for the state of a machine, or ``gone``."""

    @abstractmethod
    def remove(self, sdk: Any, name: str) -> None:
        """Remove all that has this name and tag, and wait until it is gone; harmless if there is nothing."""


class Hired(NamedTuple):
    """A machine as the ledger holds it: enough to find it again."""

    source: str
    config: str
    """The path of the clouds.yaml; empty if variables describe the cloud."""
    cloud: str
    name: str

    def state(self) -> str:
        """Return the cloud's word for its state; why there is none, if the cloud does not answer."""
        try:
            return str(self._through(lambda cloud, sdk: cloud.state(sdk, self.name)))
        except BenchError as error:
            return error.message

    def remove(self) -> None:
        """Remove it. Raises CloudError with the cloud's own words if it stays."""
        try:
            self._through(lambda cloud, sdk: cloud.remove(sdk, self.name))
        except BenchError as error:
            words = f"{self.name} may still be in cloud {self.cloud} and cost money: {error.message}"
            raise CloudError(words, remedy="try again later; else remove it with the cloud's own tools") from error

    def _through(self, do: Callable[[Cloud, Any], Any]) -> Any:
        sdk, _ = connect(self.cloud, self.config)
        with refusals("refused"):
            return do(CLOUDS.get(self.source), sdk)


def hired(entry: str) -> Hired:
    return Hired(*json.loads(entry))


def library(module: str) -> Any:
    """Return a module of openstacksdk or of what it requires. Raises RequestError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra("openstacksdk", "openstack") from error


def connect(cloud: str, config: str = "") -> tuple[Any, str]:
    """Sign in to a cloud of a clouds.yaml: of ``config``, or of the one that openstacksdk finds; return its path too.

    Raises RequestError for an unknown cloud, and for credentials that do not work.
    """
    loader = library("openstack.config.loader")
    connection = library("openstack.connection")
    # The file that the ledger names is not to be replaced by one that the environment names now.
    secure_files = [str(Path(config).parent / "secure.yaml"), *loader.SECURE_FILES]
    secrets = {"secure_files": secure_files}
    named = {"config_files": [config], "load_envvars": False, **secrets} if config else {}
    what = f"cloud {cloud}"
    remedy = f"see whether this works: openstack --os-cloud {cloud} token issue"
    with refusals(what, RequestError, remedy, "clouds.yaml"):
        read = loader.OpenStackConfig(app_name="virtbench", **named)
        chosen = read.get_one(cloud=cloud, api_timeout=ANSWERS_WITHIN_S)
    secrets_of_cloud = (value for name, value in leaves(chosen.config) if _OF_SECRETS.search(name))
    keep_secret(*secrets_of_cloud)
    with refusals(what, RequestError, remedy):
        sdk = connection.Connection(config=chosen)
        keep_secret(sdk.authorize())
    return sdk, str(Path(read.config_filename).resolve()) if read.config_filename else ""


@contextmanager
def refusals(
    what: str, kind: type[BenchError] = CloudError, remedy: str | None = None, read: str = "its answer"
) -> Iterator[None]:
    """Raise what openstacksdk raises as an error with the cloud's own words, without secrets."""
    kinds = library("openstack.exceptions").SDKException, library("keystoneauth1.exceptions").ClientException
    try:
        yield
    except (*kinds, library("yaml").YAMLError) as error:
        details = getattr(error, "details", None) or error
        words = " ".join(without_secrets(str(details)).split())
        page = re.search(r"(?i)<(?:!doctype html|html|head|body)\b", words)
        if page:
            title = re.search(r"(?i)<title>([^<]*)", words)
            words = f"{words[: page.start()]}it answers with a page{f', {title[1].strip()!r}' if title else ''}"
        raise failure(f"{what}: {words[:500]}", remedy, kind) from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # openstacksdk checks no shapes
        words = without_secrets(f"{type(error).__name__}: {error}")
        raise failure(f"{what}: openstacksdk cannot read {read} ({words[:300]})", remedy, kind) from error


def failure(message: str, remedy: str | None = None, kind: type[BenchError] = CloudError) -> BenchError:
    """Return an error whose message ends with the cloud's own words, and the next step that these suggest."""
    matching = (step for words, step in REMEDIES.items() if words in message.lower())
    return kind(message, remedy=next(matching, remedy))


def resolved(what: str, name: str, find: Callable[[str], Any]) -> Any:
    """Return what has this name or ID. Raises RequestError if nothing has."""
    resource = find(name)
    if resource is None:
        raise RequestError(f"the cloud has no {what} {name!r}", remedy=f"choose one of: openstack {what} list")
    return resource


def until_gone(remaining: Callable[[], str]) -> None:
    """Wait until nothing remains. Raises CloudError with the words for what does after ``REMOVED_WITHIN_S``."""
    deadline = time.monotonic() + REMOVED_WITHIN_S
    while words := remaining():
        if time.monotonic() > deadline:
            raise CloudError(f"it is not gone after {REMOVED_WITHIN_S:g} s: {words}")
        time.sleep(LOOKED_EVERY_S)
