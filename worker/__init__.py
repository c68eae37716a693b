"""The program that runs inside every target, and all that imports torch. See ``python3 -m worker``.

Of the suite it may import ``suite.userland`` alone: nothing else of it is part of the image.
"""
