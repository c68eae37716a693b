"""Directories of results: one run each, written, found, merged and pruned."""
