"""A script that `tenure run` runs: what is recorded of it, and what that shows."""
