"""The lab network: virtual nodes on one machine, and the networks of containers and guests on any node."""
