"""Inception v3, in the sizes of the paper's Table 1 and in smaller ones."""

from worker.workloads.classifier import Classifier

INCEPTION_V3 = Classifier(
    name="inception_v3",
    sizes={"paper": (32, 299), "quick": (8, 75), "smoke": (2, 75)},
    smallest_image_px=75,
    alone_from_px=107,
    # No auxiliary classifier, as in tf_cnn_benchmarks. Its own initialisation draws truncated normals, which takes
    # minutes on an emulated CPU and changes no step's work: the layers' default initialisation stays, on every target.
    options={"aux_logits": False, "init_weights": False},
)
