"""Where the elements of a sweep run when it is not in this process: a cluster's scheduler, or a pool of machines."""
