"""GPUs: finding them, and giving them to a target."""
