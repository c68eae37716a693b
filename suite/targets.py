"""The targets by name, and what they have in common."""

TARGETS = ("bare-metal", "container", "vm", "container-vm")
BASELINE = "bare-metal"
VMS = frozenset(("vm", "container-vm"))
"""The targets with a kernel of their own."""
CONTAINERS = frozenset(("container", "container-vm"))
"""The targets in which a container engine runs the job."""
