"""Programs that run the blocks of a sweep on other machines: a cluster's scheduler, or a pool of machines."""
