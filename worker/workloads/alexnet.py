"""AlexNet, in the sizes of the paper's Table 1 and in smaller ones."""

from worker.workloads.classifier import Classifier

ALEXNET = Classifier(
    name="alexnet",
    sizes={"paper": (512, 224), "quick": (8, 64), "smoke": (2, 64)},
    smallest_image_px=63,
)
