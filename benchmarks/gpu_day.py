"""Shows on a machine with one GPU what is true of the suite there, in stages of a minute or five, by order of worth.

    python benchmarks/gpu_day.py --minutes 14 --state DIR --out DIR [--site DIR]... [--stages AP] [--rehearse]

Needs root, bubblewrap, runc, and a Python that has torch and the suite's dependencies. OUT has facts.json, which is
written with each fact, and after each stage summary.md, records.tar.gz and log. A second call with the same --state
goes on where the first ended, or was killed; stages that failed come last, and one whose estimate does not fit into the
minutes left is skipped; one that takes three times its estimate is cut off. Nothing changes the GPU's settings. The
bounds (``gpu_stages.results``) were fixed before the first day. ``--rehearse`` runs the stages of such a call on any
machine, on the CPU, with stand-ins for NVML and libcuda, as small as they can be, each for the minutes of its estimate:
its numbers mean nothing, and of the bounds only counts are judged. It first prints what fits into 15 and 30 minutes.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))  # as a script, this file is not part of the installed suite

import pynvml  # noqa: E402
from gpu_stages.day import Day, stand_in  # noqa: E402
from gpu_stages.machine import print_libcuda  # noqa: E402
from gpu_stages.results import is_good, take  # noqa: E402
from gpu_stages.stages import SPARE_S, STAGES, WITHOUT_IMAGE, in_order, print_packed  # noqa: E402

from tests.stand_ins.nvml_state import Nvml  # noqa: E402

STUB = "int cuInit(unsigned flags) { return (int)flags; }\n"


def main() -> None:
    options = parse()
    if options.libcuda:
        print_libcuda(options.libcuda, options.image, options.state, rehearse=options.rehearse)
        return
    day = begun(options)
    pynvml.nvmlInit()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what limits the time of a call sends it
    try:
        take_stages(day)
    except KeyboardInterrupt:
        print("interrupted: a call with the same --state goes on", flush=True)
    finally:
        day.program(str(REPOSITORY / "cli.py"), "clean", timeout_s=60.0)
    summary = options.out / "summary.md"
    if summary.exists():
        print(summary.read_text())
    sys.exit(not is_good(day))


def begun(options: argparse.Namespace) -> Day:
    """Return the day with what earlier calls found; ends the program for a state of the other kind."""
    for directory in (options.state, options.out):
        directory.mkdir(parents=True, exist_ok=True)
    kept = options.state / "facts.json"
    day = Day(options, time.monotonic() + 60 * options.minutes - SPARE_S)
    if kept.exists():
        earlier = json.loads(kept.read_text())
        if earlier["rehearsal"] != options.rehearse:
            kind = "a rehearsal" if earlier["rehearsal"] else "a GPU day"
            sys.exit(f"{options.state} is of {kind}: name another directory")
        day.facts = earlier["stages"]
    if options.rehearse:
        print_packed()
        day.variables = rehearsal(options)
    return day


def rehearsal(options: argparse.Namespace) -> dict[str, str]:
    """Build the stand-ins and load NVML's into this process; return the variables that give it to others."""
    stub = options.state / "stub"
    shutil.rmtree(stub, ignore_errors=True)
    stub.mkdir()
    (stub / "cuda.c").write_text(STUB)
    library = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.580.0", "cuda.c"]
    subprocess.run([str(shutil.which("gcc")), *library], check=True, cwd=stub)
    (stub / "libcuda.so.1").symlink_to("libcuda.so.580.0")
    options.nvml = Nvml(stub)
    options.nvml.load()
    os.environ["NVML_ANSWERS"] = str(options.nvml.answers)
    options.nvml.answer(stand_in())
    return {"NVML_ANSWERS": str(options.nvml.answers), "LD_LIBRARY_PATH": str(stub)}


def take_stages(day: Day) -> None:
    """Run the stages that fit into the minutes left; those of a rehearsal count for their estimates."""
    for name in in_order(day):
        if name not in WITHOUT_IMAGE and "image" not in day.facts.get("P", {}):
            continue
        if STAGES[name].seconds > day.left_s:
            print(f"{name} is left for the next call: {day.left_s:.0f} s are left", flush=True)
            continue
        take(day, name)
        if day.options.rehearse:
            day.end_s -= max(0.0, STAGES[name].seconds - day.facts[name]["took_s"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=14.0, help="the time of this call (default %(default)s)")
    parser.add_argument("--state", type=Path, required=True, help="the directory of what a later call goes on with")
    parser.add_argument("--out", type=Path, help="the directory of what goes back")
    parser.add_argument("--stages", default="".join(STAGES), help="the stages to run (default %(default)s)")
    parser.add_argument("--site", dest="sites", type=Path, action="append", help="a directory of Python packages")
    parser.add_argument("--rehearse", action="store_true", help="run on the CPU with stand-ins for the driver")
    parser.add_argument("--libcuda", help=argparse.SUPPRESS)
    parser.add_argument("--image", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.sites = options.sites or [Path(sysconfig.get_path("purelib"))]
    options.state = options.state.absolute()
    options.out = (options.out or options.state / "out").absolute()
    return options


if __name__ == "__main__":
    main()
