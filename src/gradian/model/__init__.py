"""Load a base model with its adapter, and name the places where the adapter acts."""
