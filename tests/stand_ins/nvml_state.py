"""The state of GPUs, by a stand-in for NVML below the real pynvml, whose answers a test writes into a file.

A line is ``gpu question answer``: ``0 energy 1500``. A question without a line is not supported, and the answer
``lost`` is that of a GPU that fell off the bus. ``NVML_ANSWERS`` names the file; it is read anew for every question.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from tests.stand_ins import build

SOURCE = Path(__file__).with_name("nvml_state.c")
SONAME = "libnvidia-ml.so.1"


class Nvml:
    """The stand-in, built in a directory. ``variables`` give it to another process."""

    def __init__(self, directory: Path) -> None:
        self.answers = directory / "answers"
        self.answers.touch()
        self.library = directory / SONAME
        build(SOURCE, self.library, SONAME)
        self.variables = {"LD_LIBRARY_PATH": str(directory), "NVML_ANSWERS": str(self.answers)}

    def load(self) -> None:
        """Load it into this process, where pynvml finds it by its name; a process can load one alone."""
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)

    def answer(self, gpus: Mapping[int, Mapping[str, object]]) -> None:
        """Let the GPUs answer so from now on."""
        lines = (
            f"{gpu} {question} {answer}\n" for gpu, answers in gpus.items() for question, answer in answers.items()
        )
        new = self.answers.with_suffix(".new")
        new.write_text("".join(lines))
        os.replace(new, self.answers)  # noqa: PTH105 (nobody reads half of it)
