"""Training of one model by several instances: parameter servers, synchronous or not, and all-reduce."""
