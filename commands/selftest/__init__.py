"""The command ``bench selftest``."""
