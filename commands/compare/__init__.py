"""The commands ``bench compare`` and ``bench report``."""
