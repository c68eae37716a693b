"""Room on a machine of the inventory: asked before anything large is put there."""

from suite.errors import RequestError
from suite.interfaces import Node


def check_room(machine: Node, directory: str, needed_bytes: int, what: str) -> None:
    """Raises RequestError when the file system of the directory has not so much room for it."""
    free_bytes = int(machine.run(["df", "-B1", "--output=avail", "--", directory]).stdout.split()[-1])
    if free_bytes < needed_bytes * 1.05:
        raise RequestError(
            f"{what} needs {needed_bytes / 1e9:.1f} GB in {directory} on {machine.name}, "
            f"{free_bytes / 1e9:.1f} GB are free",
            remedy="free some space there, or name another directory in the inventory",
        )
