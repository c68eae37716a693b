"""What records say: loading, comparison, tables and plots. Reads records only and imports no sibling but ``suite``."""
