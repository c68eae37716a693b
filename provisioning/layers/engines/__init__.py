"""The container engines, by name. Adding one is one file and one line here."""

from provisioning.layers.engines.base import ContainerEngine
from provisioning.layers.engines.docker import Docker
from provisioning.layers.engines.podman import Podman
from provisioning.layers.engines.runc import Runc

ENGINES: dict[str, ContainerEngine] = {engine.name: engine for engine in (Docker(), Podman(), Runc())}
