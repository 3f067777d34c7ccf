"""Programs that serve a cluster, by one WebSocket each.

A message is a map in JSON with a ``type``.  One with a payload is a text that has it in an envelope, or it is binary:
the map, a line feed, and the payload as bytes.  ``docs/reference/doors/serve.md`` is the protocol.

What a program is sent, and what it has sent, counts among its client's bytes until that is done with.  When its
connection ends, what it was at is answered as by a member that has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, final

import trio
from starlette.websockets import WebSocket, WebSocketDisconnect

import iris.aio
from iris.doors.clients import Client
from iris.doors.http.encoding import NOTHING, Head, decoded, encoded, number_of, payload_of, size_of
from iris.doors.http.limits import HttpStatistics
from iris.doors.http.messages import MAX_CAPACITY, MAX_CODE, MAX_DETAIL, PROTOCOL, TAKEN
from iris.doors.http.reading import options_of
from iris.doors.http.tunnels import LENT, Carrier, until_closed
from iris.doors.options import SERVE
from iris.doors.problems import Problem, problem_of
from iris.doors.programs import ServedCluster, ServedClusters
from iris.doors.values import AS_VALUE
from iris.kernel.errors import IrisError, RemoteError, TunnelBroken
from iris.kernel.names import is_name
from iris.patterns.messages import Message, Request
from iris.patterns.request import DRAINING, MEMBER_LEFT, OVERLOADED
from iris.patterns.service import Outcomes, Unserved

CAPACITY: Final = 16
"""Requests that a program takes at a time, if it does not say."""

_BROADCASTS: Final = 64
_BROADCAST_BYTES: Final = 1 << 20
"""Broadcasts that a program has and has not done with, and their bytes beside one of any size."""

_RETRY_AFTER: Final = 0.1
"""Seconds after which a caller may ask again whose request found no room among the bytes of the program's client."""


async def serve_program(
    clusters: ServedClusters, client: Client, socket: WebSocket, max_message: int, counted: HttpStatistics
) -> int:
    """Have a program serve the cluster that it names, until one of both ends it.

    Returns the status of the problem by which it ended, or 0.
    """

    async def serve() -> None:
        options = options_of(socket, SERVE)
        capacity, keep = options.get("capacity", CAPACITY), options.get("keep")
        if not 0 < capacity <= MAX_CAPACITY:
            raise Problem(400, "malformed", f"capacity is a whole number from 1 to {MAX_CAPACITY}")
        cluster = str(socket.path_params["name"])
        client.check("serve", cluster)
        client.check_rate()
        outcomes = None if keep is None else Outcomes(bridge=clusters.bridge, keep=keep)
        async with client.streaming(), clusters.joined(cluster, outcomes) as served:
            program = _Program(client, socket, capacity, clusters.patience, counted)
            await program.serve(served, {"member": clusters.member, "cluster": cluster, "max_message": max_message})

    return await until_closed(socket, PROTOCOL, serve)


@final
class _Asked:
    """A request that a program has, or is about to get.

    Attributes:
        began: True if it may have seen it.
        hold: counts further bytes that are kept for it.
        size: bytes of what it has answered, once that is there: the reply's payload, or the error's code and text.
    """

    __slots__ = ("began", "hold", "reply", "size")

    def __init__(self, hold: Callable[[int], None]) -> None:
        self.reply: Final[asyncio.Future[object]] = asyncio.get_running_loop().create_future()
        self.hold: Final = hold
        self.began = False
        self.size = 0

    def end(self, payload: object, size: int) -> None:
        if self.reply.done():
            return
        self.size = size if isinstance(payload, bytes) else size // AS_VALUE
        try:
            self.hold(size)
        except Problem as problem:
            self.fail(RemoteError(problem.code, f"the program has answered: {problem.detail}"))
        else:
            self.reply.set_result(payload)

    def fail(self, error: Exception, size: int = 0) -> None:
        if not self.reply.done():
            self.size = self.size or size
            self.reply.set_exception(error)


@final
class _Outgoing:
    """A message that waits to be written.

    Attributes:
        data: text or bytes.
        asked: the request that it is.  None for any other.
        written: set when it is written.  None if nobody waits for that.
    """

    __slots__ = ("asked", "data", "written")

    def __init__(self, data: str | bytes, asked: _Asked | None = None, written: asyncio.Event | None = None) -> None:
        self.data: Final = data
        self.asked: Final = asked
        self.written: Final = written


@final
class _Talk:
    """A tunnel to a program; see ``Outlet``."""

    def __init__(self, program: _Program, number: int, tunnel: iris.aio.Tunnel) -> None:
        self.carrier: Final = Carrier(program.client, tunnel, self, program.counted)
        self.closed: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self._program = program
        self._number = number
        self._tunnel = tunnel

    async def run(self) -> None:
        """Carry until both sides have ended it, or the program has closed it."""
        await self.carrier.run(self._until_closed())

    async def _until_closed(self) -> None:
        await asyncio.shield(self.closed)

    def close(self, reason: str | None) -> None:
        """End it as the program wants: in order, or for a reason that the opener gets."""
        if self.closed.done():
            return
        if reason is None:
            self.closed.set_result(None)
        else:
            self._tunnel.abort(reason)
            self.closed.set_exception(TunnelBroken(reason))
            self.closed.exception()  # so that nothing is logged where nobody waits any more

    async def send_payload(self, payload: object) -> None:
        """See ``Outlet``."""
        await self._program.send({"type": "data", "id": self._number}, payload)

    async def send_credit(self, credit: int) -> None:
        """See ``Outlet``."""
        await self._program.send({"type": "credit", "id": self._number, "credit": credit})

    async def send_eof(self) -> None:
        """See ``Outlet``."""
        await self._program.send({"type": "eof", "id": self._number})


@final
class _Program:
    """The door's end of one program; see ``Program``.

    Args:
        client: its client.
        socket: its WebSocket.
        capacity: requests that it takes at a time.
        patience: seconds that it may make broadcasts wait, in all since it had done with half of what it may have.
        counted: counts what it has sent and waited, as its token has a rate.
    """

    def __init__(
        self, client: Client, socket: WebSocket, capacity: int, patience: float, counted: HttpStatistics
    ) -> None:
        self.client: Final = client
        self.counted: Final = counted
        self.capacity = capacity
        self._socket = socket
        # A thousand idle ones are to fit: an event, or a deque, takes 760 bytes, and a task 2 KiB with what it runs.
        self._number = 0
        self._out: list[_Outgoing] = []
        self._writing: asyncio.Task[None] | None = None
        self._asked: dict[int, _Asked] = {}
        self._told: dict[int, int] = {}
        """Bytes of the broadcasts that it has not done with."""
        self._room: asyncio.Event | None = None
        """Set when there may be room for a broadcast.  None while none waits for that."""
        self._full_patience = self._patience = patience
        self._tunnels: dict[int, _Talk] = {}
        self._drains = self._is_gone = False
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, served: ServedCluster, ready: Head) -> None:
        """Do its part of the work of a cluster until it has drained, or the node is a member no more.

        Raises:
            WebSocketDisconnect: it is gone.
            Problem: it has not kept to the rules, or its token has ended.
        """
        self._post({"type": "ready", "capacity": self.capacity, **ready})
        receiving = asyncio.ensure_future(self._metered(self._receive, partial(served.drop, self)))
        try:
            with served.having(self):
                try:
                    await asyncio.wait((receiving, self._over), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    self._lose()
        finally:
            tasks = [receiving] if self._writing is None else [receiving, self._writing]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not receiving.cancelled():
            receiving.result()

    def end(self) -> None:
        """See ``Program``."""
        if not self._over.done():
            self._over.set_result(None)

    def _lose(self) -> None:
        """Answer for what it was at, as it is gone."""
        self._is_gone = True
        for asked in self._asked.values():
            asked.fail(Unserved(MEMBER_LEFT if asked.began else DRAINING))
        for talk in self._tunnels.values():
            talk.close("the program that served it is gone")
        self.client.release(sum(self._told.values()))
        self._told.clear()
        if self._room is not None:
            self._room.set()

    def _next(self) -> int:
        self._number += 1
        return self._number

    # -- what a cluster wants: see ``Program`` --------------------------------------------------------------

    async def ask(self, request: Request) -> object:
        """See ``Program``."""
        number = self._next()
        head: dict[str, Any] = {
            "type": "request", "id": number, "timeout": round(max(0.0, request.deadline - trio.current_time()), 3),
            **_origin(request),
        }  # fmt: skip
        if request.operation is not None:
            head["operation"] = request.operation
        if request.idempotency_key is not None:
            head["key"] = request.idempotency_key
        with self.client.holding() as hold:
            data = encoded(head, request.payload)
            try:
                hold(size_of(data))
            except Problem as problem:
                raise Unserved(OVERLOADED, problem.detail, _RETRY_AFTER) from None
            asked = self._asked[number] = _Asked(hold)
            try:
                reply = await self._answer_to(number, asked, _Outgoing(data, asked))
            except RemoteError:
                await self._pace(asked)
                raise
            await self._pace(asked)
            return reply

    async def _pace(self, asked: _Asked) -> None:
        paused = await self.client.pace(asked.size)
        self.counted.paused += paused  # now, as others have counted meanwhile

    async def _answer_to(self, number: int, asked: _Asked, outgoing: _Outgoing) -> object:
        self._put(outgoing)
        try:
            return await asked.reply
        except asyncio.CancelledError:
            if asked.began:
                self._post({"type": "cancel", "id": number})
            else:
                self._out.remove(outgoing)
            raise
        finally:
            del self._asked[number]
            self._look()

    async def broadcast(self, message: Message) -> bool:
        """See ``Program``."""
        number = self._next()
        data = encoded({"type": "broadcast", "id": number, **_origin(message)}, message.payload)
        size = size_of(data)
        if not await self._wait_room(size):
            return False
        try:
            self.client.hold(size)
        except Problem:
            return False
        self._told[number] = size
        self._put(_Outgoing(data))
        return True

    async def _wait_room(self, size: int) -> bool:
        loop = asyncio.get_running_loop()
        while self._told and (len(self._told) >= _BROADCASTS or sum(self._told.values()) + size > _BROADCAST_BYTES):
            began, self._room = loop.time(), asyncio.Event()
            try:
                async with asyncio.timeout(self._patience):
                    await self._room.wait()
            except TimeoutError:
                self._patience = 0.0
                return False
            finally:
                self._room = None
            self._patience = max(0.0, self._patience - (loop.time() - began))
        return not self._is_gone

    async def talk(self, tunnel: iris.aio.Tunnel) -> None:
        """See ``Program``."""
        number = self._next()
        head: dict[str, Any] = {"type": "tunnel", "id": number, "credit": LENT, **_origin(tunnel)}
        if tunnel.operation is not None:
            head["operation"] = tunnel.operation
        talk, opening = _Talk(self, number, tunnel), _Outgoing(encoded(head))
        try:
            with self.client.holding() as hold:
                hold(size_of(opening.data))
                async with self.client.streaming():
                    self._tunnels[number] = talk
                    self._put(opening)
                    await talk.run()
        except (Problem, IrisError) as error:
            problem = problem_of(error) if isinstance(error, IrisError) else error
            if not talk.closed.done():
                self._close(number, opening, problem.code, problem.detail)
            if isinstance(error, IrisError):
                raise
            tunnel.abort(f"{problem.code}: {problem.detail}")
            raise TunnelBroken(problem.detail) from None
        except asyncio.CancelledError:
            self._close(number, opening, "ended", "the member has left")
            raise
        finally:
            self._tunnels.pop(number, None)
            self._look()

    def _close(self, number: int, opening: _Outgoing, code: str, detail: str) -> None:
        """Tell it that a tunnel broke, if it has been sent that it was opened."""
        if opening in self._out:
            self._out.remove(opening)
        elif number in self._tunnels:
            self._post({"type": "close", "id": number, "code": code, "detail": detail})

    def drain(self) -> None:
        """See ``Program``."""
        self._post({"type": "drain"})

    # -- to the program -------------------------------------------------------------------------------------

    async def send(self, head: Head, payload: object = NOTHING) -> None:
        """Send a message, and wait until it is written; raise Problem if its client has no room for it."""
        data, written = encoded(head, payload), asyncio.Event()
        with self.client.holding() as hold:
            hold(size_of(data))
            outgoing = _Outgoing(data, written=written)
            self._put(outgoing)
            try:
                await written.wait()
            except asyncio.CancelledError:
                if outgoing in self._out:
                    self._out.remove(outgoing)
                raise

    def _post(self, head: Head) -> None:
        self._put(_Outgoing(encoded(head)))

    def _put(self, outgoing: _Outgoing) -> None:
        self._out.append(outgoing)
        if self._writing is None and not self._is_gone:
            self._writing = asyncio.ensure_future(self._metered(self._write))

    async def _metered(self, work: Callable[..., Coroutine[object, object, None]], *given: object) -> None:
        """Do some work in the client's time; it is made here, as a task that is cancelled at once would never do it."""
        await self.client.processor.metered(work(*given))

    async def _write(self) -> None:
        while self._out:
            outgoing = self._out.pop(0)
            asked = outgoing.asked
            if asked is not None:
                asked.began = True  # who gives it up while it waits for room has it cancelled behind it
            try:
                if isinstance(outgoing.data, str):
                    await self._socket.send_text(outgoing.data)
                else:
                    await self._socket.send_bytes(outgoing.data)
            except BaseException as error:
                if asked is not None:
                    asked.began = False
                if isinstance(error, WebSocketDisconnect | RuntimeError):  # the latter once its end has begun
                    return  # as the task that receives sees, too
                raise
            if outgoing.written is not None:
                outgoing.written.set()
        self._writing = None

    # -- from the program -----------------------------------------------------------------------------------

    async def _receive(self, drop: Callable[[], None]) -> None:
        while True:
            message = await self._socket.receive()
            await self.client.processor.rest()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message["code"])
            head, payload, size = decoded(message.get("text"), message.get("bytes"))
            kind = head.get("type")
            match kind:
                case "reply":
                    asked, value = self._asked.get(number_of(head)), payload_of(payload)
                    if asked is not None:
                        asked.end(value, size)
                case "error":
                    error = _error(head)
                    asked = self._asked.get(number_of(head))
                    if asked is not None:
                        asked.fail(error, len(error.code) + len(error.message))
                case "done":
                    self._done_with(number_of(head))
                case "data":
                    talk, value = self._tunnels.get(number_of(head)), payload_of(payload)
                    if talk is not None:
                        talk.carrier.accept(value, size)
                case "credit":
                    talk = self._tunnels.get(number_of(head))
                    if talk is not None:
                        talk.carrier.add_credit(head.get("credit"))
                case "eof":
                    talk = self._tunnels.get(number_of(head))
                    if talk is not None:
                        talk.carrier.finish()
                case "close":
                    reason = None if head.get("code") is None else str(_error(head))
                    talk = self._tunnels.get(number_of(head))
                    if talk is not None:
                        talk.close(reason)
                case "drain":
                    self._drains = True
                    drop()
                    self._look()
                case _:
                    raise Problem(
                        400, "malformed", f"there is no message of type {kind!r:.60}: there are {', '.join(TAKEN)}"
                    )

    def _done_with(self, number: int) -> None:
        size = self._told.pop(number, None)
        if size is not None:
            self.client.release(size)
            if len(self._told) <= _BROADCASTS // 2:
                self._patience = self._full_patience
            if self._room is not None:
                self._room.set()
            self._look()

    def _look(self) -> None:
        """End it if it drains and has nothing left to do."""
        if self._drains and not (self._asked or self._told or self._tunnels):
            self.end()


def _origin(given: Request | Message | iris.aio.Tunnel) -> dict[str, object]:
    return {"sender": given.sender.cluster, "node": str(given.sender.node), "headers": dict(given.headers)}


def _error(head: Head) -> RemoteError:
    code, detail = head.get("code"), head.get("detail", "")
    if not isinstance(code, str) or not is_name(code) or len(code) > MAX_CODE or not isinstance(detail, str):
        raise Problem(400, "malformed", f"an error has a code, a name of at most {MAX_CODE} letters, and a detail")
    return RemoteError(code, detail[:MAX_DETAIL])
