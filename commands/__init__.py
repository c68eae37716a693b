"""The commands of ``bench``, a file each; ``cli`` puts them together. They wire the rooms to each other."""
