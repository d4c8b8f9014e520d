"""The report: one frozen model and its renderings."""
