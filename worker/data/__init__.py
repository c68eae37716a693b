"""Reads a data set inside the target: listing, decoding, loading, and the page cache."""
