"""The sites: where the targets of a run stand, and how they are opened there."""
