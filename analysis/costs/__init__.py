"""Computes what jobs cost in money, preemption and energy, from records, when they are read."""
