"""The command ``bench run``."""
