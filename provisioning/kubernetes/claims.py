"""Data sets on claims of the user's: where one is, and what identifies it, as a pod that reads it sees it."""

import json
import re
from pathlib import PurePosixPath
from typing import NamedTuple, Self

from provisioning.kubernetes.execution import PodNode
from provisioning.nodes import IMAGE_PYTHON
from provisioning.volumes import MOUNT
from suite.errors import RequestError, option
from suite.job.datasets import Dataset
from suite.registries import DATA_KINDS

ON_CLAIM = re.compile(
    r"(?P<dataset>[\w-]+):(?P<directory>(?P<claim>[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)(/(?!\.\.?(/|$))[^/\x00-\x1f]+)*)/?"
)
"""A data set on a claim: ``mnist:sets/digits``. Its path does not lead out of the claim."""
IDENTIFIED_WITHIN_S = 3600.0
IDENTIFY = """
import json, pkgutil, sys
from pathlib import Path
from worker.data.kinds.kind import DataSetError
from worker.data.listing import entries_of, identify, summary
place, directory, stride = sys.argv[1:]
try:
    kind = pkgutil.resolve_name(place)
    root = kind.root(Path(directory))
    entries = tuple(entries_of(root))
    images = len(kind.open(root, int(stride)))
    digest, sha256 = identify(root, entries)
except (DataSetError, OSError) as error:
    sys.exit(str(error))
listed = summary((entry.path, entry.size_bytes) for entry in entries)
found = {"sha256": sha256, "digest": digest, "listing_sha256": listed.sha256, "images": images}
print(json.dumps([str(root.relative_to(directory)), {**found, "size_bytes": listed.size_bytes}]))
"""
"""Run by the image's Python in a pod, with the kinds of data sets that the image holds."""


class ClaimedData(NamedTuple):
    """A directory on a claim, which pods read at the place of every data volume."""

    kind: str
    claim: str
    path: str

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Return the data that an option names; None for a directory of this machine, or none."""
        match = ON_CLAIM.fullmatch(text or "")
        if match:
            directory = match["directory"].partition("/")[2]
            return cls(match["dataset"], match["claim"], directory)
        return None

    def identified(self, pod: PodNode, frame_stride: int | None) -> tuple[Self, Dataset]:
        """Return the data set, and where it begins, as a pod that has the volume sees it. Raises RequestError."""
        if self.kind not in DATA_KINDS.own:
            message = f"{option('data')} {self.kind}: the image has no kind of data set of another package"
            raise RequestError(message, remedy=f"name one of {', '.join(DATA_KINDS.own)}")
        interpreter, python_path = IMAGE_PYTHON
        identifier = DATA_KINDS.place(self.kind)
        words = [interpreter, "-", identifier, MOUNT, str(frame_stride or 1)]
        argv = ["env", f"PYTHONPATH={python_path}", "PYTHONDONTWRITEBYTECODE=1", *words]
        identifying = IDENTIFY.encode()
        answer = pod.run(argv, stdin=identifying, timeout_s=IDENTIFIED_WITHIN_S, check=False)
        if answer.returncode:
            last = answer.complaint()
            raise RequestError(
                f"{option('data')} {self.kind}: the claim {self.claim} does not hold it in /{self.path}: {last[:300]}",
                remedy="copy the data set to the claim, and see that others may read it",
            )
        below, fields = json.loads(answer.stdout)
        stride = (frame_stride or 1) if DATA_KINDS.get(self.kind).has_videos else None
        path = PurePosixPath(self.path) / below
        dataset = Dataset(kind=self.kind, frame_stride=stride, **fields)
        return self._replace(path=str(path) if path.parts else ""), dataset
