"""The gradient vectors of a dataset on disk: identity, store, build."""
