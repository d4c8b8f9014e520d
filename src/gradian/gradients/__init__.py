"""One gradient vector per row: hooks, slow oracles, projection, the contrastive query."""
