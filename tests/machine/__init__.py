"""A lane of tests on a machine as most users have it: Debian with systemd and control groups of version 2, in QEMU."""
