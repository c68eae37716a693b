"""The share that is trimmed, and the degrees of freedom that are left."""

TRIM = 0.15
"""The share of the blocks that is trimmed at each end: at least one block, of five or more."""


def trimmed(n: int, trim: float = TRIM) -> int:
    """Return how many of ``n`` values are trimmed at each end."""
    return max(1, int(trim * n)) if trim and n >= 5 else 0


def degrees_of_freedom(n: int, trim: float = TRIM) -> int:
    """Return the degrees of freedom of the trimmed mean of ``n`` values."""
    return n - 2 * trimmed(n, trim) - 1
