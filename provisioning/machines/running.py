"""A QEMU that runs a guest, and the guest's console, which says when the guest is ready and why it failed."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from provisioning.machines.qemu_command import QemuSpec
from suite.errors import BenchError, MeasurementError, ending, signal_of
from suite.interfaces import Process

LOCKED_UP_REMEDY = (
    "run it again with the same --out; emulated CPUs can lock each other up while others want the host's CPUs"
)
_GONE_WITHIN_S = 1.0
"""How long after a lost connection QEMU's end is waited for: the kernel closes its sockets first."""
FLOOD_REMEDY = "see what in the guest writes to its console"
KILLED_REMEDY = "see who ended it: the host's kernel log tells whether it was for want of memory"
READY = "virtbench-ready"
LOCKED_UP = "soft lockup"
"""The message of a kernel about a CPU that has done nothing else for twenty seconds."""
KEPT_CHARACTERS = 6000
"""The end of what the guest says; the rest is forgotten. A guest that floods its console is ended: see ``hearing``."""


class GuestConsole:
    """Keeps the end of the guest's serial output (QEMU's standard output), read in a thread that mostly sleeps."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.text = ""
        self._changed = threading.Event()
        self.ready = False
        self.locked_up = False
        self.flood: BenchError | None = None
        """Why it was ended for its output, if it was."""
        self._reading = threading.Thread(target=self._read, daemon=True, name="guest console")
        self._reading.start()

    def wait_until_ready(self, within_s: float) -> bool:
        """Wait until the guest is ready, has ended, or the time is over; return whether it is ready."""
        self._changed.wait(within_s)
        return self.ready

    def close(self) -> None:
        self._reading.join(_GONE_WITHIN_S)

    def _read(self) -> None:
        try:
            for line in self._process.lines(float("inf")):
                self.text = (self.text + line + "\n")[-KEPT_CHARACTERS:]
                self.locked_up = self.locked_up or LOCKED_UP in line
                if READY in line:
                    self.ready = True
                    self._changed.set()
        except BenchError as error:
            self.flood = error
        finally:
            self._changed.set()


@dataclass
class RunningQemu:
    """The QEMU of a guest. Another takes its place when the guest is loaded from a snapshot."""

    spec: QemuSpec
    run: Callable[[QemuSpec], AbstractContextManager[Process]]
    """Runs a QEMU. The process lives as long as it does, and its output is the guest's console."""
    lifetime: ExitStack
    """Ends every QEMU that was started."""
    process: Process = field(init=False)
    console: GuestConsole = field(init=False)

    def start(self, spec: QemuSpec) -> None:
        self.process = self.lifetime.enter_context(self.run(spec))
        self.console = GuestConsole(self.process)
        self.lifetime.callback(self.console.close)
        self.lifetime.callback(self.process.kill)

    def wait_for_end(self, within_s: float) -> bool:
        """Wait until it has ended or the time is over; return whether it has ended."""
        deadline_s = time.monotonic() + within_s
        while self.process.running() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return not self.process.running()


def explained(error: BenchError, machine: RunningQemu) -> MeasurementError:
    """Return the error with the last output of the guest and of QEMU, and with the cause that these show.

    A kernel that locked up explains every other failure, and so does the end of QEMU: others see a lost connection.
    """
    console = machine.console
    status = None
    if machine.wait_for_end(_GONE_WITHIN_S):
        status = machine.process.wait(_GONE_WITHIN_S)
        console.close()  # its last output is read before it is judged
    outputs = {"the guest's console": console.text, "QEMU": machine.process.output_tail()}
    parts = (f"--- {source} ---\n{text}" for source, text in outputs.items() if text)
    message = error.message
    kind = error.kind
    remedy = error.remedy
    if console.locked_up:
        message = f"the guest's kernel locked up: {message}"
        kind = "guest-locked-up"
        remedy = LOCKED_UP_REMEDY
    elif console.flood:
        message = f"the guest's console: {console.flood.message}"
        kind = "output"
        remedy = FLOOD_REMEDY
    elif status is not None and signal_of(status):
        message = f"QEMU {ending(status)}: {message}"
        kind = "killed"
        remedy = KILLED_REMEDY
    return MeasurementError(
        message,
        kind=kind,
        command=getattr(error, "command", ()),
        output_tail="\n".join(filter(None, (getattr(error, "output_tail", ""), *parts))),
        remedy=remedy,
    )
