"""The formats of generated data sets, a file each."""
