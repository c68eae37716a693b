"""What is trained: a file for each workload. Declarations are read without torch, on the host too."""
