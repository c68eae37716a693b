"""Where it runs: nodes, layers, targets, images, ledger. The only room that starts processes."""
