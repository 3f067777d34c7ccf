"""Kafka in the place of the embedded log: members of a bridge that keep nothing themselves.

Promises: what is confirmed has been written by as many replicas as ``min.insync.replicas`` says, two at least unless
less was asked for; events of one key stand in their order in one partition once repeats are dropped, and each repeat
can be told by its headers; what waits for brokers is bounded in bytes, and publishers pause for it.  Not here: queues,
leases, outcomes, Spark's sink, copies and tiers, which need the embedded log.

``CopyOut`` and ``CopyIn`` copy between an embedded log and Kafka, each event once.
"""
