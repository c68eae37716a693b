"""The page in a real browser: on a phone, a tablet and a desk it fits, and it asks the network nothing."""

import base64
import re
import subprocess
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from analysis.load.records import load
from analysis.report.page import write_report
from suite.job.profiles import Sizes
from suite.records.record import DataUse, Timeline
from suite.records.usage import Resources, Usage
from suite.results.store import Run
from tests.analysis.conftest import probe, record
from tests.integration.machine import require_chromium

pytestmark = [pytest.mark.integration, pytest.mark.beside]

WIDTHS = (390, 800, 1280)
HEIGHT = 2400
# The page tells its size to a page around it: a window of Chromium is 500 px wide at least, a frame can be narrower.
TELL = (
    "<script>addEventListener('load', () => { const page = document.documentElement;"
    " parent.postMessage([page.scrollWidth, page.clientWidth, page.scrollHeight].join(' '), '*') })</script>"
)
AROUND = (
    "<!doctype html><title>nothing</title><style>body {{ margin: 0 }} iframe {{ border: 0; display: block }}</style>"
    "<script>addEventListener('message', (event) => {{ document.title = event.data }})</script>"
    '<iframe src="page.html" width="{width}" height="{height}"></iframe>'
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all that a page can hold: both scenarios, probes, switches, A/A, costs, failures, long notes."""
    place = tmp_path_factory.mktemp("report")
    noise = np.random.default_rng(0)
    for block in range(3):
        for scenario in ("synthetic", "real"):
            _training(Run(place / scenario), scenario, block, noise)
        _probe(Run(place / "probe"), block, noise)
    runs = [place / name for name in ("synthetic", "real", "probe")]
    return write_report(load(runs), place / "page.html")


def _training(run: Run, scenario: str, block: int, noise: np.random.Generator) -> None:
    for model in ("resnet50", "inception_v3"):
        for target, factor in (("bare-metal", 1.0), ("container", 0.99), ("vm", 0.7), ("container-vm", 0.6)):
            for ablation in (None, *(("seccomp",) if target == "container" else ())):
                _trial(run, scenario, block, model, target, ablation, factor * float(noise.lognormal(0, 0.01)))
        _trial(run, scenario, block, model, "bare-metal", None, float(noise.lognormal(0, 0.01)), replica=1)


def _trial(
    run: Run, scenario: str, block: int, model: str, target: str, ablation: str | None, factor: float, replica: int = 0
) -> None:
    failed = "the guest never became ready" if (target, block) == ("container-vm", 1) else None
    made = record(
        scenario,
        scenario=scenario,
        data="generated" if scenario == "real" else "synthetic",
        model=model,
        target=target,
        replica=replica,
        ablation=ablation,
        block=block,
        failed=failed,
        throughput_per_s=None if failed else 10 * factor,
        elapsed_s=None if failed else 20 / factor,
        sizes=Sizes(batch=8, image_px=64, warmup_steps=1, steps=3),
        timeline=Timeline(launch_s=0.5, imports_s=1 / factor, build_s=0.3, warmup_s=0.4, teardown_s=0.1),
        substitutes=["accelerator:tcg", "userland:not-the-image's-and-a-long-word-" * 3] if "vm" in target else [],
        resources=Resources(
            serving=Usage(cpu_s=22 / factor, peak_memory_bytes=9 << 27, disk_read_bytes=1 << 20),
            worker=Usage(cpu_s=20.0, peak_memory_bytes=7 << 27, disk_read_bytes=1 << 20, disk_written_bytes=0),
            energy_j={"package-0": 300.0},
        ),
        page_cache="cold" if scenario == "real" else None,
        data_use=_data() if scenario == "real" else None,
    )
    run.save(made)


def _data() -> DataUse:
    return DataUse(
        kind="imagefolder",
        sha256="d" * 64,
        images=100,
        size_bytes=11_000_000,
        decoder="simplejpeg",
        loader_workers=2,
        images_read=32,
        bytes_read=3_500_000,
    )


def _probe(run: Run, block: int, noise: np.random.Generator) -> None:
    for target, factor in (("bare-metal", 1.0), ("container", 1.0), ("vm", 0.5), ("container-vm", 0.4)):
        rate = factor * float(noise.lognormal(0, 0.01))
        disk = probe(
            "disk",
            sequential_read_throughput=(500 * rate, "MiB/s", "more"),
            random_read_depth1_iops=(9000 * rate, "1/s", "more"),
            random_read_depth1_latency_p99=(90 / rate, "us", "less"),
            random_read_depth32_iops=(90_000 * rate, "1/s", "more"),
            sequential_write_throughput=(400 * rate, "MiB/s", "more"),
        )
        run.save(record("probe", block=block, target=target, **disk))
        cpu = probe("cpu", matrix_product_all_threads=(110 * rate, "GFLOP/s", "more"))
        run.save(record("probe", block=block, target=target, **cpu))


def browse(place: Path, width: int, *arguments: str) -> str:
    """What Chromium writes when it shows a copy of the page in a frame so wide."""
    (place / "around.html").write_text(AROUND.format(width=width, height=HEIGHT))
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", "--hide-scrollbars")
    own = (f"--user-data-dir={place / 'profile'}", f"--window-size={max(width, 500)},{HEIGHT}")
    argv = [require_chromium(), *options, *own, *arguments, (place / "around.html").as_uri()]
    return subprocess.run(argv, capture_output=True, text=True, timeout=180, check=True).stdout


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_its_width_and_shows_something(page: Path, tmp_path: Path, width: int) -> None:
    (tmp_path / "page.html").write_text(page.read_text().replace("</body>", f"{TELL}</body>"))
    dom = browse(tmp_path, width, "--dump-dom")
    told = re.search(r"<title>(\d+) (\d+) (\d+)</title>", dom)
    assert told, f"the page told nothing: {dom[:500]}"
    scroll, client, height = map(int, told.groups())
    assert client == width
    assert scroll <= client, f"the page is {scroll - client} px too wide at {width} px"
    assert height > HEIGHT
    picture = tmp_path / f"report-{width}.png"
    browse(tmp_path, width, f"--screenshot={picture}")
    pixels = matplotlib.image.imread(picture)[:, :width, :3]
    assert pixels.shape[:2] == (HEIGHT, width)
    inked = np.asarray((pixels < 0.9).any(axis=2))
    assert 0.01 < inked.mean() < 0.9
    assert inked[HEIGHT // 2 :].any(), "the lower half is blank"
    assert len(np.unique((pixels * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 20


def test_nothing_on_the_page_is_fetched_from_anywhere(page: Path) -> None:
    text = page.read_text()
    fetched = re.findall(r"\b(?:src|href|srcset|action|poster|data)\s*=\s*[\"']([^\"']*)", text)
    assert fetched
    assert all(target.startswith(("data:", "#")) for target in fetched)
    assert "@import" not in text
    assert "url(" not in text
    pictures = [target for target in fetched if target.startswith("data:image/svg+xml;base64,")]
    assert len(pictures) >= 8
    for picture in pictures:
        svg = base64.b64decode(picture.partition(",")[2]).decode()
        assert "<svg" in svg
        assert all(target.startswith(("data:", "#")) for target in re.findall(r"\bhref=\"([^\"]*)", svg))
