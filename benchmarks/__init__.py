"""Iris beside its peers: every system does the same work, in separate processes, interleaved in one run."""
