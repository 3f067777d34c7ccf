"""One member of a bridge: subscribes, commits in groups, acknowledges, answers readers and writers.

Promises: an event is acknowledged after it is on disk; a batch of Spark's counts once; every operation checks the
caller's rights.  Not here: how bytes lie on the disk (iris.spark_bridge.log).
"""
