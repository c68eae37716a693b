"""A format of generated sets: which files one has, and the content of each."""

from dataclasses import dataclass

from scenarios.datasets.manifest import SetPlan


@dataclass(frozen=True, kw_only=True)
class SetFormat:
    """The declaration of a format. A file's path and content follow from the plan and the file's number alone."""

    sized: bool = False
    """Whether ``--size`` and ``--classes`` are for it to choose: other formats have sizes and labels of their own."""
    least_images: int = 1
    grows: bool = False
    """Whether a longer set begins with the files of a shorter one."""

    def files(self, plan: SetPlan) -> int:
        """Return how many files there are."""
        raise NotImplementedError

    def path(self, plan: SetPlan, index: int) -> str:
        """Return the path of a file."""
        raise NotImplementedError

    def content(self, plan: SetPlan, index: int) -> bytes:
        """Draw a file."""
        raise NotImplementedError

    def file_bytes(self, plan: SetPlan) -> int:
        """Return the mean disk space of a file, with what is lost in its last block."""
        raise NotImplementedError


def held_out(images: int) -> int:
    """Return how many images each part has that is not trained on."""
    return max(1, images // 6)
