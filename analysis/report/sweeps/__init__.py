"""What cells of a sweep, or the jobs of a run, say together, as elements of a document."""
