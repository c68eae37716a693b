"""The stages F and H: other ways to train on the one GPU, and how far equal trials differ."""

from collections.abc import Sequence
from statistics import fmean, median

from gpu_stages.day import REHEARSED, Day, Facts, Found, about, early_loss
from gpu_stages.loops import loop


def several_ways(day: Day) -> Found:
    """Train with parameters on the CPU, with one rank of NCCL, and on JPEG files, whose copies are held to a probe."""
    small = ("--scenario", "synthetic", *day.models("resnet50"), *day.steps(100, 20), "--target", "bare-metal")
    failed = 0
    for way in () if day.options.rehearse else ("parameter-cpu", "ddp"):
        found = about(day.run(f"F-{way}", *small, "--parallel", way, "--devices", "1"))
        failed += found["trials that failed"]
        yield {way: found, "trials that failed": failed}
    probe = day.run("F-memory", "--scenario", "probe", "--probe", "memory", "--target", "bare-metal")
    images = ("--images", "8", "--size", "small") if day.options.rehearse else ("--images", "2048")
    day.bench("data", "make", *images)
    words = ("--scenario", "real", "--data", "generated", "--cache", "warm", "--model", "alexnet")
    read = day.run("F-JPEG", *words, "--target", "bare-metal", *day.steps(100, 20))
    failed += sum(record["outcome"]["status"] != "ok" for record in (*probe, *read))
    yield {"JPEG": about(read), "trials that failed": failed}
    drawn = day.run("F-drawn", "--scenario", "synthetic", "--model", "alexnet", *day.steps(100, 20), *small[-2:])
    # Drawn images are copied as floats, those of files as bytes, which the device makes floats of.
    for kind, records, pixel_bytes in (("synthetic", drawn, 4), ("JPEG", read, 1)):
        rate = REHEARSED if day.options.rehearse else copied(records, pixel_bytes, probe)
        yield {f"copy phase / probe: {kind}": rate}


def copied(records: Sequence[Facts], pixel_bytes: int, probe: Sequence[Facts]) -> float | None:
    """Return the rate of the copy phase of a training over that of the memory probe; None if one is not measured."""
    if not (records and probe and records[0]["steps"] and probe[0]["metrics"]):
        return None
    sizes = records[0]["job"]["sizes"]
    seconds = median(records[0]["steps"]["copy_s"])
    moved_bytes = sizes["batch"] * 3 * sizes["image_px"] ** 2 * pixel_bytes
    return float(moved_bytes / seconds / 1e9 / probe[0]["metrics"]["host-to-device-pinned"]["value"])


def same_work(day: Day) -> Found:
    """Repeat a trial, to see how far equal trials differ, and a loop with and without TF32."""
    words = ("--target", "bare-metal", "--scenario", "synthetic", *day.models("resnet50"), "--blocks", "3")
    records = day.run("H", *words, *day.steps(100, 20))
    losses = [early_loss(record) for record in records if record["outcome"]["status"] == "ok"]
    spread = (max(losses) - min(losses)) / abs(fmean(losses)) if losses else None
    digests = len({record["weights_sha256"] for record in records})
    yield {**about(records), "spread of losses of equal trials": spread, "different weights": digests}
    fp32_loss, fp32_rate = loop(day, "synchronised", "resnet50")
    tf32_loss, tf32_rate = loop(day, "tf32", "resnet50")
    yield {"loss in TF32 / loss in fp32": tf32_loss / fp32_loss, "speed in TF32 / speed in fp32": tf32_rate / fp32_rate}
