"""The container engines, one file each; ``suite.registries.ENGINES`` lists them."""
