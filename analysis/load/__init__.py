"""Reads records into one table."""
