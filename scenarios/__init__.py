"""The scenarios: the jobs that are run on targets. Imports the core and the worker, and no other room."""
