"""Iris for asyncio: the names, arguments, errors and cancellation of the trio API, in a running event loop.

::

    import iris.aio

    async with iris.aio.open_node() as node:
        print(await node.request("databases", b"hello"))

Trio runs as a guest of the loop, in its thread, for as long as a node is open.  Everything else (``iris.Config``, the
errors) is the same object as for trio.  An ``iris.aio.Service`` says to ``iris run`` that its handlers are asyncio's;
nodes take an ``iris.Service`` as well.  What each method does, takes and raises is said where
trio's is: here it has the same signature and docstring.  Cancelling is asyncio's, with ``asyncio.timeout`` for one, and
``trio.ClosedResourceError`` and the like, of which docstrings speak, are here as ``iris.aio.ClosedResourceError``.

Promises: what cancelling leaves behind is what it leaves behind with trio.  A wait that is cancelled in the very moment
in which it succeeds raises ``CancelledError``; a message or event that had come is kept for the next call.
Not here: ``Tunnel.as_stream``, whose streams are trio's.
"""

from typing import TypeAlias

from iris.kernel.loading import loading

with loading():
    from trio import BusyResourceError, ClosedResourceError, EndOfChannel
    from iris.aio.handles import (
        Answers, ClusterMembership, ConfirmedEvents, Lease, LossWatch, Saga, SharedState, StateWatch,
        Subscription, Tunnel, Watch,
    )  # fmt: skip
    from iris.aio.node import Node, lifespan, open_node
    from iris.aio.queues import Bridge, Consumer, Job, JobWorker, LogBatch, WorkQueue
    from iris.aio.service import Service
    from iris.patterns.messages import Request as _Request

Request: TypeAlias = _Request[Node]
"""An ``iris.Request`` whose ``node`` is an ``iris.aio.Node``."""

__all__ = (
    "Answers", "Bridge", "BusyResourceError", "ClosedResourceError", "ClusterMembership", "ConfirmedEvents",
    "Consumer", "EndOfChannel", "Job", "JobWorker", "Lease", "LogBatch", "LossWatch", "Node", "Request", "Saga",
    "Service", "SharedState", "StateWatch", "Subscription", "Tunnel", "Watch", "WorkQueue", "lifespan", "open_node",
)  # fmt: skip
