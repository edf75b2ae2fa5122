"""Schedule to program."""
