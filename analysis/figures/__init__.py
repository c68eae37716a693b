"""How figures are drawn; the only room that imports matplotlib and seaborn."""
