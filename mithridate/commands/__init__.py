"""Commands that fill a file of their own. They import what they need when they are called."""
