"""Work queues on a bridge's log: leases, attempts, dead letters.

Promises: a job that is in the log is assigned until a worker has done it, it has failed as often as its workers allow,
or it has expired; its outcome is on the disk before its worker forgets it.  Jobs of one key are assigned one at a time,
in the order of the log.  Not here: the worker's side (iris.patterns.pubsub.queues), and how long the log keeps what is
done (iris.spark_bridge.log).
"""

from iris.spark_bridge.queues.queue import LogMember
from iris.spark_bridge.queues.queues import Queues
from iris.spark_bridge.queues.records import read_date
from iris.spark_bridge.queues.rows import LARGE, JobRow, pieces_of, rows_of

__all__ = (
    "LARGE", "JobRow", "LogMember", "Queues", "pieces_of", "read_date", "rows_of",
)  # fmt: skip
