"""The core: types, plan, the one loop and the store. Imports no sibling room."""

__version__ = "0.1.0"
