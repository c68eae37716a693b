"""JPEG files like ImageNet's, one folder for each class."""

from dataclasses import dataclass

from scenarios.datasets.formats.format import SetFormat
from scenarios.datasets.manifest import SetPlan
from scenarios.datasets.pictures import MAKES, picture


@dataclass(frozen=True, kw_only=True)
class ImageFolderFormat(SetFormat):
    """An image is a file. Its path does not depend on how many there are."""

    def files(self, plan: SetPlan) -> int:
        return plan.images

    def path(self, plan: SetPlan, index: int) -> str:
        return f"class-{index % (plan.classes or 1):04d}/{index:08d}.jpg"

    def content(self, plan: SetPlan, index: int) -> bytes:
        return picture(plan.seed, index, plan.size or "imagenet")

    def file_bytes(self, plan: SetPlan) -> int:
        return MAKES[plan.size or "imagenet"].disk_bytes


IMAGEFOLDER = ImageFolderFormat(sized=True, grows=True)
