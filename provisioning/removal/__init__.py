"""Removes what the suite has made: runs, images, and all that it keeps on this machine."""
