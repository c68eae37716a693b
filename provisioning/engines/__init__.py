"""The container engines, by name. Adding one is one file and one line here."""

from provisioning.engines.base import ContainerEngine
from provisioning.engines.docker import Docker
from provisioning.engines.podman import Podman
from provisioning.engines.runc import Runc

ENGINES: dict[str, ContainerEngine] = {engine.name: engine for engine in (Docker(), Podman(), Runc())}
