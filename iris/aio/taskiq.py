"""A broker for taskiq: its tasks are jobs in a queue on a bridge's log, so no broker runs beside the bridge.

    broker = IrisBroker("thumbnails")

    @broker.task
    async def shrink(path: str) -> None: ...

A task is on the bridge's disk when ``kiq`` returns, and is done when taskiq acknowledges it; of a worker that dies
before, another one gets it.  The extra is ``iris-mesh[taskiq]``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, final

from msgspec import Struct

try:
    from taskiq import AckableMessage, AsyncBroker, AsyncTaskiqDecoratedTask, BrokerMessage
except ModuleNotFoundError as error:
    error.add_note("iris.aio.taskiq needs taskiq: pip install 'iris-mesh[taskiq]'")
    raise

from iris.aio.node import Node, open_node
from iris.aio.queues import Job, WorkQueue
from iris.kernel.errors import LeaseLost

_log: Final = logging.getLogger("iris")

ID: Final = "taskiq-id"
NAME: Final = "taskiq-name"
"""Headers of a job: id and name of the task, for who looks at the queue and its dead letters."""

_OPTIONS: Final[dict[str, Callable[[Any], Any]]] = {"delay": float, "expires": float, "priority": int, "key": str}
"""Labels of a task that are options of ``WorkQueue.put``; taskiq sends labels as texts."""


@final
class BrokerOptions(Struct, frozen=True, kw_only=True):
    """Options of an ``IrisBroker``.

    Attributes:
        bridge: cluster of the bridge.
        limit: tasks that a worker process has at a time, waiting or running; at least its ``--max-async-tasks``.
        lease: see ``iris.Bridge.queue``; a worker that lives lets it begin anew.
        attempts: see there.
        dead: see there.
        backoff: see there.
        timeout: seconds within which a program that sends tasks finds the bridge, and a task is confirmed.
    """

    bridge: str = "bridge"
    limit: int = 128
    lease: float = 30.0
    attempts: int = 5
    dead: str | None = None
    backoff: float = 1.0
    timeout: float = 10.0


@final
class IrisBroker(AsyncBroker):
    """Sends taskiq's tasks through a queue on a bridge's log.

    Labels of a task: ``delay``, ``expires``, ``priority`` and ``key`` are those of ``iris.WorkQueue.put``.

    A task that its worker does not know counts as a failed attempt: it is tried again after the pause, and after
    ``attempts`` it is a dead letter.  One that raises is acknowledged by taskiq, whose middlewares try it again.  One
    that is never acknowledged stays with its worker until that ends.

    Args:
        queue: name of the queue, a topic that the bridge stores.
        name: name of the node that each process opens, and so its cluster; with a credential None.
        options: what becomes of its tasks.
        node: other arguments of ``iris.aio.open_node``.
    """

    def __init__(
        self,
        queue: str = "taskiq",
        *,
        name: str | None = "taskiq",
        options: BrokerOptions = BrokerOptions(),  # noqa: B008 -- a frozen value
        **node: Any,
    ) -> None:
        super().__init__()
        self._name = queue
        self._options = options
        self._open: Callable[[], Any] = lambda: open_node(name, **node)
        self._queue: WorkQueue | None = None
        self._owner: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._in_hand: set[Job] = set()
        self._refused: set[Job] = set()
        """Jobs of tasks that this worker does not know, which taskiq acknowledges next."""

    async def startup(self) -> None:
        """Open a node and the queue; a program that sends tasks waits for the bridge.

        Raises:
            IrisError: the node cannot be opened, or the bridge is not there in time.
        """
        await super().startup()
        if self._owner is None:
            self._closing = asyncio.Event()
            opened: asyncio.Future[WorkQueue] = asyncio.get_running_loop().create_future()
            # In a task of its own: taskiq begins and ends a broker in different ones.
            self._owner = asyncio.create_task(self._own(opened))
            await asyncio.wait((opened, self._owner), return_when=asyncio.FIRST_COMPLETED)
            if not opened.done():
                owner, self._owner = self._owner, None
                await owner
            self._queue = opened.result()

    async def shutdown(self) -> None:
        """Give back what is not acknowledged, and close the node."""
        await super().shutdown()
        owner, self._owner, self._queue = self._owner, None, None
        self._closing.set()
        if owner is not None:
            await owner

    async def _own(self, opened: asyncio.Future[WorkQueue]) -> None:
        node: Node
        options = self._options
        async with (
            self._open() as node,
            node.bridge(options.bridge).queue(
                self._name,
                lease=options.lease,
                attempts=options.attempts,
                dead=options.dead,
                backoff=options.backoff,
            ) as queue,
        ):
            if not self.is_worker_process:
                await node.wait_for(options.bridge, timeout=options.timeout)
            opened.set_result(queue)
            while not self._closing.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(options.lease / 3):
                        await self._closing.wait()
                for job in self._in_hand:
                    job.release() if self._closing.is_set() else job.extend()
            self._in_hand.clear()

    async def kick(self, message: BrokerMessage) -> None:
        """Put a task into the queue; it is on the bridge's disk when this returns.

        Raises:
            ValueError: the broker was not started, or a label is malformed.
            IrisError: as ``iris.WorkQueue.put``.
        """
        labels = {name: read(message.labels[name]) for name, read in _OPTIONS.items() if name in message.labels}
        headers = {ID: message.task_id, NAME: message.task_name}
        await self._started().put(message.message, headers=headers, timeout=self._options.timeout, **labels)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Take tasks from the queue.

        Raises:
            ValueError: the broker was not started.
        """
        async for job in self._started().receive(self._options.limit):
            if isinstance(job.payload, bytes) and NAME in job.headers:
                self._in_hand.add(job)
                yield AckableMessage(data=job.payload, ack=partial(self._acknowledge, job))
            else:
                job.fail("this is no message of taskiq", permanent=True)

    async def _acknowledge(self, job: Job) -> None:
        """Report a task as done, and wait until that is on the bridge's disk.

        Raises:
            trio.ClosedResourceError: the broker was shut down before, and another worker gets the task.
        """
        if job in self._refused:
            self._refused.remove(job)
            return
        self._in_hand.discard(job)
        try:
            await job.commit()
        except LeaseLost as error:
            _log.warning("a task of taskiq may be done twice: %s", error, extra={"queue": self._name})

    def find_task(self, task_name: str) -> AsyncTaskiqDecoratedTask[Any, Any] | None:
        """Return a task by name; None, and its jobs here fail, if there is none: taskiq says nothing else of them."""
        task = super().find_task(task_name)
        if task is None:
            for job in [job for job in self._in_hand if job.headers[NAME] == task_name]:
                self._in_hand.remove(job)
                self._refused.add(job)
                job.fail(f"this worker knows no task {task_name!r}")
        return task

    def _started(self) -> WorkQueue:
        if self._queue is None:
            raise ValueError("start the broker first: await broker.startup()")
        return self._queue
