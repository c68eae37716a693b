"""Machines of the user's, reached by OpenSSH."""
