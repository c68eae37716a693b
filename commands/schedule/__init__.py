"""The commands ``bench sweep schedule``."""
