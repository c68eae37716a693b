"""The probes: one cost of a layer at a time, without training. See ``python3 -m worker --probe``.

A probe is one module that declares a ``Probe``; ``program`` imports the one that it is asked for.
"""
