"""Counters that this host keeps around a job."""
