"""The probes: one cost of a layer at a time, without training. See ``python3 -m worker --probe``.

Each probe is one module with ``measure(request) -> Measured``; ``program`` knows them by name.
"""
