"""Workers of queues, and what a bridge says of a queue."""

from __future__ import annotations

from typing import Any

import trio

import iris
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


async def first(worker: iris.JobWorker) -> iris.Job:
    """Return the next job of a worker."""
    with trio.fail_after(60):
        return await anext(worker)


async def status(node: iris.Node, name: str = "jobs") -> dict[str, Any]:
    """Return what the bridge says of a queue."""
    found: dict[str, Any] = await node.request("bridge", {"group": f"queue/{name}"}, operation="queue")
    return found
