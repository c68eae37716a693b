"""Control groups of this machine, on version 1 and version 2: limits, counters, removal."""
