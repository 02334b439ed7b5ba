"""Experiments: recipes for the paper's tables and figures, the store, and who runs them."""
