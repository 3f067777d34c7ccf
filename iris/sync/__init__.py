"""Iris for programs without an event loop: the names, arguments and errors of the trio API as plain calls.

::

    import iris.sync

    with iris.sync.open_node() as node:
        print(node.request("databases", b"hello"))

Each node has a thread in which trio runs.  Its methods may be called from any thread, by several at a time; events,
answers and messages are plain iterators.  Everything else (``iris.Service``, ``iris.Config``, the errors) is the same
object as for trio.  What each method does, takes and raises is said where trio's is: here it has the same signature
and docstring.

Promises: Ctrl-C ends a wait at once, and leaves behind what cancelling leaves behind with trio; a second one does not
wait for that.  A process that was forked from one with a node gets an error: open the first node after the fork, as in
Celery's ``worker_process_init``.  A program that ends with a node open says goodbye.
``publish`` returns when nothing can refuse the event any more: plain bytes on a topic that the node has published on
are sent soon afterwards.  The order of a thread's events is kept, nothing that the thread sends later overtakes them,
and leaving the node sends what is left.  A block that ``sys.exit`` or Ctrl-C ends gives that half a second; what is not
sent then is logged, and lost in the books as ``not published``.
Not here: a limit in time for what has none with trio, like ``receive``: close the tunnel, or leave the block; and
``Lease.left``.
"""

from typing import TypeAlias

from iris.kernel.loading import loading

with loading():
    from trio import BusyResourceError, ClosedResourceError, EndOfChannel
    from iris.sync.handles import (
        Answers, ClusterMembership, ConfirmedEvents, Lease, LossWatch, Saga, SharedCounter, SharedMap,
        SharedSet, SharedState, StateWatch, Subscription, Tunnel, Watch,
    )  # fmt: skip
    from iris.sync.node import Node, open_node
    from iris.sync.queues import Bridge, Consumer, Job, JobWorker, LogBatch, WorkQueue
    from iris.patterns.messages import Request as _Request

Request: TypeAlias = _Request[Node]
"""An ``iris.Request`` whose ``node`` is an ``iris.sync.Node``."""

__all__ = (
    "Answers", "Bridge", "BusyResourceError", "ClosedResourceError", "ClusterMembership", "ConfirmedEvents",
    "Consumer", "EndOfChannel", "Job", "JobWorker", "Lease", "LogBatch", "LossWatch", "Node", "Request", "Saga",
    "SharedCounter", "SharedMap", "SharedSet", "SharedState", "StateWatch", "Subscription", "Tunnel",
    "Watch", "WorkQueue", "open_node",
)  # fmt: skip
