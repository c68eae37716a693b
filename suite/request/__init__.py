"""The request: every option of a run, declared once."""
