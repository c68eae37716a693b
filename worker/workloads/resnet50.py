"""ResNet-50, in the sizes of the paper's Table 1 and in smaller ones."""

from worker.workloads.classifier import Classifier

RESNET50 = Classifier(
    name="resnet50",
    sizes={"paper": (32, 224), "quick": (8, 64), "smoke": (2, 32)},
    smallest_image_px=32,
    alone_from_px=33,
)
