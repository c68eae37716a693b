"""The image: built from docker/Dockerfile, kept as a tree, a VM disk and an OCI archive, checked before it is used."""
