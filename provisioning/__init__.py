"""Nodes, layers, targets, images and the ledger. The only room that starts processes."""
