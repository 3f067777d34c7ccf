"""Names of the room, loaded when the first of them is read."""

from iris.patterns.pubsub.queues.bridge_members import BridgeMembers
from iris.patterns.pubsub.queues.bridge_user import BridgeUser
from iris.patterns.pubsub.queues.consumer import Consumer, LogBatch, LogEvent, Start, open_consumer
from iris.patterns.pubsub.queues.groups import drop_group
from iris.patterns.pubsub.queues.job import Job
from iris.patterns.pubsub.queues.member_stream import decode_value_untrusted
from iris.patterns.pubsub.queues.terms import (
    DEAD_ATTEMPTS, DEAD_ERROR, DEAD_PLACE, DEAD_QUEUE, DEAD_SUFFIX, DELAY, MAX_DELAY, MAX_PRIORITY, OWN_HEADERS,
    PRIORITY, check_queue,
)  # fmt: skip
from iris.patterns.pubsub.queues.work_queue import WorkQueue, open_work_queue
from iris.patterns.pubsub.queues.worker import JobWorker

__all__ = (
    "DEAD_ATTEMPTS", "DEAD_ERROR", "DEAD_PLACE", "DEAD_QUEUE", "DEAD_SUFFIX", "DELAY", "MAX_DELAY", "MAX_PRIORITY",
    "OWN_HEADERS", "PRIORITY",
    "BridgeMembers", "BridgeUser", "Consumer", "Job", "JobWorker", "LogBatch", "LogEvent", "Start", "WorkQueue",
    "check_queue", "decode_value_untrusted", "drop_group", "open_consumer", "open_work_queue",
)  # fmt: skip
