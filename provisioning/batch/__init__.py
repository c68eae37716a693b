"""Blocks of a sweep on other machines: the options of a cluster or a pool, and a block as a process here."""
