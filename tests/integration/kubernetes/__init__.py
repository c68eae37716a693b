"""Tests on a genuine Kubernetes of two nodes."""
