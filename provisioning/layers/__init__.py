"""The layers that can be opened on a node: the userland in place, a container, a virtual machine."""
