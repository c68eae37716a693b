"""What is asked for: every option of a run, declared once."""
