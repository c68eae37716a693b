"""How the figures are drawn; the only place that imports matplotlib and seaborn, besides ``plots``."""
