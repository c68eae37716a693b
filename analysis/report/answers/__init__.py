"""The answer to a comparison: its claims, their reasons, equal work, and what to do next."""
