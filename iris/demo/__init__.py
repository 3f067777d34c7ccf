"""``iris demo``: an airport on real data, with a check of every number.

Promises: every counter of the demo adds up, and Spark's figures equal those of pandas; no process outlives it.
"""
