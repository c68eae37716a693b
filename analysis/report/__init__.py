"""Shows results: tables, the HTML page, and exports."""
