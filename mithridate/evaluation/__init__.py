"""Measuring agents: who meets whom, and what the numbers mean."""
