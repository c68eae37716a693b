"""Machine providers, which boot the guests of the VM targets; ``suite.registries.MACHINES`` lists them."""
