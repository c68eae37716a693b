"""Judges the positive control: whether the suite has found the injuries that were done."""
