"""The command ``bench web``: pages to start, watch and compare runs. They hold no state of their own."""
