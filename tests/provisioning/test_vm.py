"""What is said of a guest that failed."""

from provisioning.machines.qemu import GuestConsole, _explained
from provisioning.nodes import LocalNode
from suite.errors import MeasurementError

HUNG = "[   32.4] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [runc:145]\n"


def failed(node: LocalNode, console: str) -> MeasurementError:
    process = node.start(["sh", "-c", 'printf %s "$1"; echo qemu: gone >&2', "sh", console])
    heard = GuestConsole(process)
    heard.close()
    return _explained(MeasurementError("ssh outlived its time limit", kind="command"), process, heard)


def test_a_failure_carries_what_the_guest_and_qemu_said_last(node: LocalNode) -> None:
    error = failed(node, "cannot mount the userland\n")
    assert (error.kind, error.message) == ("command", "ssh outlived its time limit")
    assert "cannot mount the userland" in error.output_tail
    assert "qemu: gone" in error.output_tail


def test_a_kernel_that_locked_up_is_the_reason_and_says_what_to_do(node: LocalNode) -> None:
    error = failed(node, HUNG + "and more\n" * 1000)
    assert error.kind == "guest-locked-up"
    assert error.message == "the guest's kernel locked up: ssh outlived its time limit"
    assert "--out" in str(error.remedy)
