"""``bench reproduce``."""
