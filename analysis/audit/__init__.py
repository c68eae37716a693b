"""The audit: every record, and every run as a whole, held against itself before anything is compared."""
