"""Ways to score rows from gradient vectors: pure functions over arrays."""
