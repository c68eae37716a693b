"""What a place is, without torch: its environment, and whether the tree seen from inside is the image's."""

from suite import userland
from worker.environment import collect


def attest(root: str = "/") -> dict[str, object]:
    """The environment with the userland's digest and its differences; both null where the tree is none of the image."""
    digest = userland.manifest_digest(root)
    differences = None if digest is None else userland.differences(root, everything=False)
    return {**collect(), "userland_sha256": digest, "userland_differences": differences}
