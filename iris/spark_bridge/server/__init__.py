"""One member of a bridge: subscribes, commits in groups, acknowledges, answers readers and writers.

Promises: an event is acknowledged after it is on disk; a batch of Spark's counts once; every operation checks the
caller's rights.  Not here: how bytes lie on the disk (iris.spark_bridge.log).
"""

from iris.spark_bridge.events.arrow import look_for_pandas

look_for_pandas()  # while this is imported, and not in the event loop, where the first event would wait for it
