"""A generator behind HTTP, and the load generator that measures it from another instance."""
