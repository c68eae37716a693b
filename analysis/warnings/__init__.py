"""Typed warnings: what a reader of the results must know, each with advice."""
