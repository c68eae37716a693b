"""The commands ``bench results``."""
