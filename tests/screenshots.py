"""Make the pictures of the pages in docs/evidence, from a run that was decided.

``python -m tests.screenshots RUN`` takes a minute; it needs the image, Chromium and the extra ``web``.
"""

import io
import json
import shutil
import subprocess
import sys
import tempfile
from base64 import b64decode
from pathlib import Path

from msgspec.structs import replace
from PIL import Image

from tests.integration.bench import REPOSITORY
from tests.integration.browser import Tab, chromium, generating, serving
from tests.worker.test_serving import serve_spec

PLACE = REPOSITORY / "docs" / "evidence"
WIDTH_PX, MOST_HEIGHT_PX, COLOURS = 900, 1000, 64
WORKLOAD, IMAGE_PX, CHANNELS = "worker.workloads.vae:VAE", 28, 1
FRAME_MS = 2000
SHOWN_BELOW = "/srv"
"""The directory of the results, whose path the next command shows."""
IMAGES, BATCH, EPOCHS = 4000, 50, 10


def main(decided: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=SHOWN_BELOW) as name:
        work = Path(name)
        shutil.copytree(decided, work / "results" / decided.name)
        spec = replace(serve_spec(WORKLOAD, IMAGE_PX, CHANNELS), dataset="mnist", model="vae")
        spec = replace(spec, model_file=str(trained(work)))
        with generating(spec) as here, generating(spec) as there, chromium(work / "profile") as tab:
            (work / "services.toml").write_text(f'first = "{here}"\nsecond = "{there}"\n')
            with serving(work / "results", "--services", str(work / "services.toml")) as (address, _):
                show(tab, address, decided.name)


def trained(work: Path) -> Path:
    """Train a generator on drawn images in the format of MNIST, and return its file."""
    data, file = work / "mnist", work / "vae.pt"
    words = ["data", "make", "--format", "mnist", "--images", str(IMAGES), "--out", str(data)]
    subprocess.run([sys.executable, str(REPOSITORY / "cli.py"), *words], check=True, stdout=subprocess.DEVNULL)
    network = {"workload": WORKLOAD, "image_px": IMAGE_PX, "channels": CHANNELS, "model_file": str(file)}
    steps = {"batch": BATCH, "warmup_steps": 0, "steps": 0, "epochs": EPOCHS, "seed": 1}
    machine = {"threads": 1, "recipe": "reference", "device": "cpu", "devices": 1, "parallel": "none"}
    kind = "worker.data.kinds.mnist:MNIST"
    read = {"kind": kind, "directory": str(data), "loader_workers": 1, "decoder": "auto"}
    spec = {**network, **steps, **machine, "data": read}
    argv = [sys.executable, "-m", "worker", "--train", json.dumps(spec)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY)
    return file


def show(tab: Tab, address: str, run: str) -> None:
    """Walk through the pages, and take a picture of each."""
    site = address.partition("/?")[0]
    metrics = {"width": WIDTH_PX, "height": MOST_HEIGHT_PX, "deviceScaleFactor": 1, "mobile": False}
    tab.call("Emulation.setDeviceMetricsOverride", **metrics)
    tab.enter(address, "/start")
    tab.wait("document.querySelector('#preview .led') !== null")
    picture(tab, "start")
    tab.open(f"{site}/")
    tab.wait("document.querySelector('.answer') !== null")
    picture(tab, "runs")
    tab.open(f"{site}/compare?run={run}")
    tab.wait("document.querySelector('iframe') !== null")
    tab.run(f"new Promise((done) => setTimeout(done, {FRAME_MS}))")  # a sandbox tells nobody that it is shown
    picture(tab, "compare")
    tab.open(f"{site}/generate?model=mnist+vae&seed=7")
    picture(tab, "generate")


def picture(tab: Tab, name: str) -> None:
    """Write docs/evidence/web-NAME.png, no higher than the page, in few colours."""
    bottom_px = int(tab.run("document.querySelector('main').getBoundingClientRect().bottom"))
    height_px = min(MOST_HEIGHT_PX, bottom_px + 12)
    clip = {"x": 0, "y": 0, "width": WIDTH_PX, "height": height_px, "scale": 1}
    shot = b64decode(tab.call("Page.captureScreenshot", format="png", clip=clip)["data"])
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS).save(PLACE / f"web-{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
