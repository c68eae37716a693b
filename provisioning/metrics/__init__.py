"""What this host counts around a job."""
