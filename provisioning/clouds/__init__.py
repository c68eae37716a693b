"""Clouds that lend machines, through openstacksdk; ``suite.registries.CLOUDS`` lists them."""
