"""The lane's command line: ``python -m tests.machine [--suite bookworm|trixie]``. Needs root and 35 GB of disk.

The machine is emulated: nothing here measures, and steps take minutes.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from provisioning.images.image import Image, current
from provisioning.machines.ssh import SSH_FAILED
from suite.errors import BenchError
from tests.machine import disks
from tests.machine.guest import Guest, booted
from tests.machine.steps import STEPS, Step

TAIL = 3000


def note(text: str) -> None:
    print(f"== {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.machine", description=__doc__)
    parser.add_argument("--suite", choices=disks.FURTHER, action="append", help="Debian's release; default: all")
    parser.add_argument("--keep", type=Path, help="directory in which the disks are kept for the next time")
    parser.add_argument("--only", default="", help="regular expression of the steps to try")
    words = parser.parse_args()
    steps = [step for step in STEPS if step.name == "prepare" or re.search(words.only, step.name)]
    try:
        image = current()
        with tempfile.TemporaryDirectory(prefix="virtbench-machine-", dir="/var/tmp") as place:
            keep = words.keep or Path(place)
            failed = [suite for suite in words.suite or disks.FURTHER if not try_all(suite, image, keep, steps)]
    except (BenchError, RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"{error}")
    sys.exit(1 if failed else 0)


def try_all(suite: str, image: Image, keep: Path, steps: list[Step]) -> bool:
    """Boot one machine and try the steps in it; returns whether all of them succeeded."""
    keep.mkdir(parents=True, exist_ok=True)
    system = disks.once(keep / f"{suite}.img", partial(disks.of_system, suite, image), note)
    packed = disks.once(keep / f"image-{image.digest[:12]}.img", partial(disks.of_image, image), note)
    with tempfile.TemporaryDirectory(prefix="virtbench-machine-", dir=keep) as place:
        began = time.monotonic()
        with booted((system, packed, image.file("docker.img")), Path(place)) as guest:
            guest.put_checkout()
            note(f"{suite}: booted in {time.monotonic() - began:.0f} s")
            rows = [(step.name, *row) for step in steps for row in attempts(guest, step)]
    note(f"{suite}: {time.monotonic() - began:.0f} s")
    print("| step | s | result |\n| --- | ---: | --- |")
    for name, took_s, fault in rows:
        print(f"| {name} | {took_s:.0f} | {fault or 'ok'} |")
    return not any({name: fault for name, _, fault in rows}.values())


def attempts(guest: Guest, step: Step) -> Iterator[tuple[float, str]]:
    """Try one step, and once more where not the step but the connection has ended; yields the row of each time."""
    yield (row := attempt(guest, step))
    if row[1].startswith(f"exit {SSH_FAILED}:"):
        note(f"{step.name}: SSH has ended; once more. The console: {guest.last_words()}")
        yield attempt(guest, step)


def attempt(guest: Guest, step: Step) -> tuple[float, str]:
    """Try one step and print its output; returns the seconds, and the reason if it failed."""
    began = time.monotonic()
    try:
        ended = guest.run(step.user, step.script, step.within_s)
        output, fault = ended.stdout, f"exit {ended.returncode}" if ended.returncode else ""
    except subprocess.TimeoutExpired as error:
        output, fault = (error.stdout or b"").decode(errors="replace"), f"not ended within {step.within_s:.0f} s"
    took_s = time.monotonic() - began
    last = output.strip().rpartition("\n")[2] if fault else ""
    note(f"{step.name}: {took_s:.0f} s, {f'failed: {fault}' if fault else 'ok'}")
    print(output[-TAIL:], flush=True)
    return took_s, f"{fault}: {last[:200]}" if fault else ""


if __name__ == "__main__":
    main()
