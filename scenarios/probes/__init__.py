"""Probes that the host measures, on an ordinary job of the worker."""
