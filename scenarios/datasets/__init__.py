"""Data sets on this machine: made, verified, found."""
