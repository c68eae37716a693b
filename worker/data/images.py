"""Opens the images of a data set inside the target."""

from pathlib import Path

from worker.data.kinds.kind import DataSetError
from worker.data.sets import ImageSet
from worker.errors import JobError
from worker.spec import Data


def open_images(data: Data) -> ImageSet:
    """Open the set. Raises JobError of kind ``data`` for a directory that does not hold it."""
    kind = data.load_kind()
    try:
        images = kind.open(kind.root(Path(data.directory)), data.frame_stride)
    except (OSError, DataSetError) as error:
        remedy = getattr(error, "remedy", None)
        raise JobError(
            f"{data.directory} is no readable data set of kind {kind.name}: {error}", kind="data", remedy=remedy
        ) from error
    if not len(images):
        raise JobError(f"{data.directory} holds no images", kind="data")
    return images
