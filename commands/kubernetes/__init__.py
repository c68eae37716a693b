"""``bench kubernetes``: what the suite brings to a cluster for those who want it there without measuring."""
