"""The in-context model: GPT-2 blocks, their attention and cache, encoders, and weights on disk."""
