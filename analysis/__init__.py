"""Analyses records: loads, compares and explains them, and makes tables, figures and the report.

It reads records only, and imports no other room but ``suite``.
"""
