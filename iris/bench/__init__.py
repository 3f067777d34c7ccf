"""``iris bench``: measures a cluster of processes on this machine."""
