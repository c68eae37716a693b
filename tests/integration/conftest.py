"""What holds before and after a test on the real machine, and the docker daemon of all tests."""

import shutil
from collections.abc import Iterator

import pytest

from tests.integration.bench import added_since, ours
from tests.integration.machine import docker_daemon, require_root_and_image


@pytest.fixture
def nothing_left() -> Iterator[None]:
    require_root_and_image()
    before = ours()  # what others left, or use: clean names it, and it is no failure of this test
    yield
    assert added_since(before) == {}


@pytest.fixture(scope="session")
def oci_runtimes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """OCI runtimes by name, as a user sets them up for docker: runc once more, and gVisor's. Podman takes paths."""
    place = tmp_path_factory.mktemp("runtimes")
    # A runsc of 2022 takes every network of a newer kernel for the machine's, unless there is none to set up.
    (place / "sandbox").write_text(f'#!/bin/sh\nexec {shutil.which("runsc")} --network=none "$@"\n')
    (place / "sandbox").chmod(0o755)
    return {"again": str(shutil.which("runc")), "sandbox": str(place / "sandbox")}


@pytest.fixture(scope="session")
def docker_host(oci_runtimes: dict[str, str]) -> Iterator[str]:
    """The address of a daemon that is started, and given the image, once: either takes a long while."""
    with docker_daemon(*(f"--add-runtime={name}={path}" for name, path in oci_runtimes.items())) as host:
        yield host


@pytest.fixture
def docker(docker_host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
