"""Showing results: tables, figures, and the paper's numbers to hold them against."""
