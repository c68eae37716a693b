"""Training of one model by several instances: parameter servers, all-reduce, a split GAN."""
