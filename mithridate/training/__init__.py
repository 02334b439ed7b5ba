"""Training: one loop that checkpoints and resumes, and what it drives."""
