"""Copies of a log: the journal of what a transaction changes, and how a copy repeats it."""
