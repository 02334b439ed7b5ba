"""The commands. They import what they need when they are called."""
