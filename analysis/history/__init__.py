"""The history of a cell: its numbers over all runs of a directory, and where they changed."""
