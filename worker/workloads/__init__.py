"""The workloads, a file each. Their declarations are read without torch, on the host too."""
