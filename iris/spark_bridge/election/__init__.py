"""Election: an engine that has a consensus of its own decides which copy of a log calls for its promotion, and when.

Promises: while the engine answers and enough copies are there, the log of a primary that is gone goes on at a copy, and
nobody types anything.  The election decides nothing else: terms and promises of the copies
(``iris.spark_bridge.copies``) keep a former primary from confirming, whatever the engine says, and while the engine is
away a primary goes on.
"""

from iris.spark_bridge.election.election import Election, open_election

__all__ = ("Election", "open_election")
