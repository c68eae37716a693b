"""The aggressor: the worker as the neighbour that loads the machine until it is told to stop.

Nothing is imported here: the worker says that it has started before torch is loaded.
"""
