"""Make documents of what cells of a sweep, or the jobs of a run, show together."""
