"""A run folder, read into a trainer profile, settings, log history and adapter. Loads no torch."""
