"""Consumers of a bridge's log: programs that read it without Spark, in groups that go on where they were.

Promises: a consumer gets each event of its topics from its group's position on, in the order of each shard; one
consumer of a group at a time reads at a member, and another one goes on when it is gone; a group that nobody uses
expires.  Not here: the program's side
(iris.patterns.pubsub.queues), and readers of Spark (iris.spark_bridge.datasource).
"""

from iris.spark_bridge.consumers.consumers import Consumers
from iris.spark_bridge.consumers.groups import ReaderGroups

__all__ = ("Consumers", "ReaderGroups")
