"""From a measured regression to the rows and groups that caused it."""
