"""Says where an overhead comes from."""
