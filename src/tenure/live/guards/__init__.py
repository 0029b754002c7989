"""Watching what streams do to each other's memory, operator by operator."""
