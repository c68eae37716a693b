"""The places where blocks of a sweep run: one class each, listed in ``suite.registries.BACKENDS``."""
