"""The bridge behind a door: its jobs, log and leases, for programs that are connected by a WebSocket.

All is done by the node's ``Bridge``, as a program of asyncio does it: a program at the door is one worker, consumer or
holder of its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, final

from starlette.websockets import WebSocket, WebSocketDisconnect

import iris.aio
from iris.doors.clients import Client
from iris.doors.http.answering import first_of
from iris.doors.http.encoding import NOTHING, Head, decoded, encoded, size_of
from iris.doors.problems import Problem, problem_of
from iris.kernel.errors import IrisError, NoSuchCluster, RequestTimeout

PATIENCE: Final = 30.0
"""Seconds that a bridge may be away before what programs have open at it ends; until then it is waited for."""

MOST: Final = 32
"""Programs of one client that use the bridge at a time: a bridge lets the door's cluster have 256, and 64 queues."""

WAIT: Final = 5.0
"""Seconds that a program waits for a bridge when it comes, if it does not say."""


@final
class DoorBridge:
    """The bridge that a door lends.

    Args:
        node: node of the door.
        name: cluster of the bridge.
        drain_timeout: seconds that programs have to finish when the door closes.
        patience: seconds that the bridge may be away.

    Attributes:
        handle: the bridge, as the node has it.
        name: its cluster.
    """

    def __init__(self, node: iris.aio.Node, name: str, drain_timeout: float, patience: float = PATIENCE) -> None:
        self.handle: Final = node.bridge(name)
        self.name: Final = name
        self._node = node
        self._drain_timeout = drain_timeout
        self._patience = patience
        self._lost = asyncio.Event()
        self._open: dict[Dialogue, asyncio.Event] = {}
        self._lent = Counter[str]()
        """Number of programs, by the name of their client."""
        self._kept: set[asyncio.Task[None]] = set()
        self._paused = 0

    @property
    def programs(self) -> int:
        """Number of programs that have something open."""
        return len(self._open)

    @property
    def paused(self) -> int:
        """Number of times that one waited, as its token has a rate."""
        return self._paused + sum(dialogue.paused for dialogue in self._open)

    async def follow(self) -> None:
        """Notice when the bridge is away, until cancelled."""
        async with self._node.watch(self.name) as changes:
            async for _ in changes:
                if self._node.members(self.name):
                    continue
                try:
                    await self._node.wait_for(self.name, timeout=self._patience)
                except RequestTimeout:
                    self._lost.set()
                    self._lost = asyncio.Event()

    @asynccontextmanager
    async def lent(self, client: Client, wait: float) -> AsyncGenerator[None]:
        """Lend the bridge to a program for the length of the block.

        Raises:
            Problem: its client has as many programs there as it may, or the bridge is not there in time.
        """
        if self._lent[client.name] >= MOST:
            detail = f"{MOST} programs of a client use the bridge at a time at most"
            raise Problem(429, "too_many_streams", detail, retry_after=1)
        self._lent[client.name] += 1
        try:
            if not self._node.members(self.name):
                try:
                    await self._node.wait_for(self.name, timeout=wait)
                except RequestTimeout:
                    raise self._away() from None
            yield
        finally:
            self._lent[client.name] -= 1
            self._lent += Counter()  # without those of which there are none

    def keep(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Do work that may go on when its program is gone, until ``end``."""
        task = asyncio.ensure_future(work)
        self._kept.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._kept.discard(task)
        if not task.cancelled():
            task.exception()  # its program was told, or is gone

    async def until_lost(self) -> None:
        """Wait until the bridge was away for too long, and raise Problem then."""
        await self._lost.wait()
        raise self._away()

    def _away(self) -> Problem:
        return Problem(503, "no_bridge", f"no node serves {self.name!r}: start 'iris bridge', or wait for it")

    async def converse(self, dialogue: Dialogue) -> None:
        """Have a program talk until one of both ends it, or the bridge is lost.

        Raises:
            WebSocketDisconnect: the program is gone.
            Problem: it has not kept to the rules, its token has ended, or the bridge is away.
            IrisError: the bridge refuses.
        """
        ended = self._open[dialogue] = asyncio.Event()
        try:
            await dialogue.run(self.until_lost())
        finally:
            del self._open[dialogue]
            self._paused += dialogue.paused
            ended.set()

    async def ask_all(self, payload: object, operation: str, timeout: float) -> list[Any]:
        """Return what each member of the bridge answers; raise Problem if one does not."""
        try:
            async with self._node.survey(self.name, payload, operation=operation, timeout=timeout) as answers:
                found = [one.payload async for one in answers]
        except NoSuchCluster:
            raise self._away() from None
        for error in answers.errors.values():
            raise error
        if answers.missing or not found:
            raise self._away()
        return found

    async def close(self) -> None:
        """Have programs finish what they are at, for a time."""
        ended = [asyncio.ensure_future(one.wait()) for one in self._open.values()]
        for dialogue in self._open:
            dialogue.drain()
        if ended:
            _, late = await asyncio.wait(ended, timeout=self._drain_timeout)
            for task in late:
                task.cancel()

    async def end(self) -> None:
        """End what was kept, once all programs are gone."""
        for task in self._kept:
            task.cancel()
        if self._kept:
            await asyncio.wait(self._kept)


class Dialogue(ABC):
    """A program that has something open at a bridge.

    What it is sent waits in a queue, so that nothing that comes from the bridge waits uncounted behind a program that
    does not read: it counts among its client's bytes until the program is done with it.

    Args:
        client: its client.
        socket: its WebSocket.
    """

    def __init__(self, client: Client, socket: WebSocket) -> None:
        self.client: Final = client
        self.drains = False
        self.paused = 0
        """Number of times that the program waited, as its token has a rate."""
        self._socket = socket
        self._out: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._held: dict[int, int] = {}
        self._number = 0

    async def run(self, *others: Coroutine[object, object, None]) -> None:
        """Talk until the end; see ``DoorBridge.converse``."""
        metered = self.client.processor.metered
        try:
            await first_of(
                metered(self._receive()), metered(self._write()), metered(self.work()), self._until_over(), *others
            )
            with suppress(WebSocketDisconnect, RuntimeError):
                while not self._out.empty():
                    await self._send(self._out.get_nowait())
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            self.client.release(sum(self._held.values()))
            self._held.clear()

    @abstractmethod
    async def work(self) -> None:
        """Do what the program has come for.  It does not return before it is cancelled."""

    @abstractmethod
    def handle(self, head: Head, payload: object) -> None:
        """Do what a message wants; raise Problem if it is malformed."""

    @property
    def is_at(self) -> int:
        """Batches or jobs that the program has, and is not done with."""
        return len(self._held)

    @property
    def unread(self) -> int:
        """Messages that wait to be written."""
        return self._out.qsize()

    def drain(self) -> None:
        """Begin nothing new, and let the program know."""
        if not self.drains:
            self.post({"type": "drain"})
            self.finish()

    def finish(self) -> None:
        """Begin nothing new, and end when nothing is left."""
        self.drains = True
        self.look()

    def end(self) -> None:
        """End in order."""
        if not self._over.done():
            self._over.set_result(None)

    def look(self) -> None:
        """End if it drains and has nothing left."""
        self._room.set()
        if self.drains and not self._held and not self._tasks:
            self.end()

    def give(self, *messages: tuple[Head, object]) -> int:
        """Send what the program has to be done with, and return its id; raise Problem if its client has no room."""
        number = self._number + 1
        data = [encoded({**head, "id": number}, payload) for head, payload in messages]
        size = sum(map(size_of, data))
        self.client.hold(size)
        self._number = number
        self._held[number] = size
        for one in data:
            self._out.put_nowait(one)
        return number

    async def until_done(self) -> None:
        """Wait until the program is done with something."""
        self._room.clear()
        await self._room.wait()

    async def pace(self) -> None:
        """Wait until the program's token lets it send more: only then it gets something else to answer."""
        paused = await self.client.pace(0, 0)
        self.paused += paused

    def done_with(self, number: int) -> None:
        """Count no more what was given."""
        self.client.release(self._held.pop(number, 0))
        self.look()

    def post(self, head: Head) -> None:
        """Send a message that is none of those."""
        self._out.put_nowait(encoded(head))

    def settle(self, number: int, work: Callable[[], Awaitable[object]]) -> None:
        """Wait for the bridge's disk in a task, and tell the program when it is on it, or why not."""

        async def settling() -> None:
            try:
                await work()
            except IrisError as error:
                problem = problem_of(error)
                self.post({"type": "error", "id": number, "code": problem.code, "detail": problem.detail})
            else:
                self.post({"type": "committed", "id": number})
            self.client.release(self._held.pop(number, 0))

        task = asyncio.ensure_future(settling())
        self._tasks.add(task)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not self._over.done():
                self._over.set_exception(error)
        else:
            self.look()

    async def _until_over(self) -> None:
        await asyncio.shield(self._over)

    async def _write(self) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):  # its end has begun, as the task that receives sees, too
            while True:
                await self._send(await self._out.get())
        await asyncio.Event().wait()

    async def _send(self, data: str | bytes) -> None:
        if isinstance(data, str):
            await self._socket.send_text(data)
        else:
            await self._socket.send_bytes(data)

    async def receive(self) -> tuple[Head, object]:
        """Return the next message of the program, and its payload."""
        message = await self._socket.receive()
        await self.client.processor.rest()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        text, data = message.get("text"), message.get("bytes")
        head, payload, _ = decoded(text, data)
        self.client.charge(len(text or data or ""), 1)
        return head, payload

    async def _receive(self) -> None:
        while True:
            head, payload = await self.receive()
            if head.get("type") == "drain" and payload is NOTHING:
                self.finish()
            else:
                self.handle(head, payload)


def unknown(head: Head) -> Problem:
    """Return the problem of a message that nobody knows."""
    return Problem(400, "malformed", f"there is no message of type {head.get('type')!r:.60}")
