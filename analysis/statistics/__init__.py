"""Pure statistics of ratios; nothing here knows of records."""
