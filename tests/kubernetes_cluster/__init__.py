"""A genuine Kubernetes 1.20.2 on this host for the tests: two nodes in namespaces of their own.

``build`` makes the programs once, from Debian's source package; ``up`` starts them and ``down`` leaves nothing:

    python -m tests.kubernetes_cluster up
"""
