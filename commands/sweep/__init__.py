"""The commands ``bench sweep``."""
