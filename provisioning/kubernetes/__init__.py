"""Kubernetes: the cluster as the user's kubeconfig reaches it, and pods as containers of the suite."""
