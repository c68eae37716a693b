"""Trains on the devices of one instance."""
