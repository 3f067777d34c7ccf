"""Workers of a queue's machine, whose dead letters go to one topic."""

from __future__ import annotations

from iris.patterns.bridge_protocol import TakeJobs
from iris.spark_bridge.queues.machine import QueueWorker


class Letters:
    """The right to publish on one topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def topic(self) -> str:
        """Return the topic."""
        return self._topic


def make_worker(limit: int, *, lease: float = 10.0, attempts: int = 5, backoff: float = 0.0) -> QueueWorker:
    """Return a worker of the queue "jobs"."""
    terms = TakeJobs(group="queue/jobs", limit=limit, lease=lease, attempts=attempts, dead="jobs.dead", backoff=backoff)
    return QueueWorker(terms, Letters("jobs.dead"))
