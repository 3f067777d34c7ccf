"""``iris demo``: an airport on real data, with a check of every number."""
