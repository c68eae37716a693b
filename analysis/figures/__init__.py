"""Draws figures; the only room that imports matplotlib and seaborn."""
