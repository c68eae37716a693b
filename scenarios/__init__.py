"""What is run on a target. Imports the core and no other room."""
