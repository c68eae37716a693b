"""Forms ratios to bare metal, with intervals and verdicts."""
