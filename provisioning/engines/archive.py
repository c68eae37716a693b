"""What a packed image consists of, as an engine that has loaded it must say too."""

import json
import tarfile
from pathlib import Path

from suite.errors import RequestError


def layers(archive: Path) -> list[str]:
    """The digests of its unpacked layers. An engine checks them while it loads, and names what it holds by them.

    Raises RequestError for an archive that cannot be read.
    """
    try:
        with tarfile.open(archive) as tar:
            (manifest,) = json.loads(_content(tar, "manifest.json"))
            found: list[str] = json.loads(_content(tar, manifest["Config"]))["rootfs"]["diff_ids"]
    except (OSError, tarfile.TarError, ValueError, LookupError) as error:
        raise RequestError(f"{archive} is no image: {error}", remedy="build it again: bench image build") from error
    return found


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    return file.read() if file else b""
