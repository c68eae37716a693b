"""A Nova that is started from nothing, for the test of machines for hire: ``make test-openstack``."""
