"""Texts and files that others have made: read within bounds, shown as text, and trusted by who may write it."""
