"""The audit: mechanical causes in the rows, the configuration, the logs and the adapter file."""
