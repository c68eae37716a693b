"""Reads rates and steps from the output of a command: units, numbers, lines, and series of rates."""
