"""What is said of a guest that failed."""

from dataclasses import replace
from pathlib import Path

from provisioning.machines.qemu import _with_console
from provisioning.nodes import LocalNode
from suite.errors import MeasurementError
from tests.provisioning.test_arguments import VM

HUNG = "[   32.4] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [runc:145]\n"


def failed(node: LocalNode, place: Path, console: str) -> MeasurementError:
    (place / "console.log").write_text(console)
    process = node.start(["sh", "-c", "echo qemu: gone >&2"])
    process.wait(60)
    return _with_console(
        node,
        MeasurementError("ssh outlived its time limit", kind="command"),
        process,
        replace(VM, directory=str(place)),
    )


def test_a_failure_carries_what_the_guest_and_qemu_said_last(node: LocalNode, tmp_path: Path) -> None:
    error = failed(node, tmp_path, "cannot mount the userland\n")
    assert (error.kind, error.message) == ("command", "ssh outlived its time limit")
    assert "cannot mount the userland" in error.output_tail
    assert "qemu: gone" in error.output_tail


def test_a_kernel_that_locked_up_is_the_reason_and_says_what_to_do(node: LocalNode, tmp_path: Path) -> None:
    error = failed(node, tmp_path, HUNG)
    assert error.kind == "guest-locked-up"
    assert error.message == "the guest's kernel locked up: ssh outlived its time limit"
    assert "--out" in str(error.remedy)
