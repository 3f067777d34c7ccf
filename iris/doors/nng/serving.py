"""Serving: programs of REP and RESPONDENT that serve a cluster, each connection as one program.

A program gets the requests of the cluster, and those of surveys, one at a time: a socket of nng works on no more.  It
answers in the form in which the door answers REQ.  When its connection ends, what it was at is answered as by a member
that has left.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final, final

import trio

from iris.doors.clients import Client, Clients
from iris.doors.nng.counters import LoggedOnce, NngStatistics
from iris.doors.nng.messages import MAX_SENT, read_answer, request_message
from iris.doors.nng.sockets import Endpoint, Pipe
from iris.doors.problems import Problem
from iris.doors.programs import Asked, AskedProgram, ServedClusters
from iris.doors.values import AS_VALUE
from iris.kernel.errors import RemoteError
from iris.patterns.messages import Message, Request
from iris.patterns.request import DRAINING, OVERLOADED
from iris.patterns.service import Unserved

_RETRY_AFTER: Final = 0.1
"""Seconds after which a caller may ask again whose request found no room among the bytes of the client."""


@final
class Serving:
    """Has the programs of one endpoint serve a cluster.

    Args:
        clusters: clusters that the node serves for programs.
        cluster: the one that these serve.
        clients: clients that may use the node.
        name: name of the client that they are.
        max_payload: bytes of a payload at most.
        counted: counters of what is done.
    """

    def __init__(
        self,
        clusters: ServedClusters,
        cluster: str,
        clients: Clients,
        name: str,
        max_payload: int,
        counted: NngStatistics,
    ) -> None:
        self._clusters = clusters
        self._cluster = cluster
        self._clients = clients
        self._name = name
        self._max_payload = max_payload
        self._counted = counted
        self._reported = LoggedOnce()
        self._programs: dict[int, _Program] = {}
        """Programs by the number of their connection."""

    async def keep(self, pipe: Pipe) -> None:
        """Have a connection serve until it, the client's token or the node's membership ends; then it is ended."""
        try:
            client = self._clients.named(self._name)
            client.check("serve", self._cluster)
            async with client.streaming(), self._clusters.joined(self._cluster) as served:
                program = self._programs[pipe.number] = _Program(client, pipe, self._counted)
                try:
                    with served.having(program):
                        await asyncio.shield(pipe.gone)
                finally:
                    del self._programs[pipe.number]
                    program.lose()
        except Problem as problem:
            self._counted.refused[problem.status] += 1
            self._reported.once(f"a program does not serve {self._cluster}", problem)
        finally:
            pipe.end()

    async def run(self, endpoint: Endpoint) -> None:
        """Take the answers that come to the endpoint, for ever; what is wrong with one is what its caller gets."""
        while True:
            received = await endpoint.receive()
            program = self._programs.get(received.pipe.number)
            if program is not None:
                await program.client.processor.rest()
                with program.client.processor.working():
                    program.answer(received.header, *self._read(received.data))

    def _read(self, data: bytes) -> tuple[object, int]:
        """Return what a program has answered, and the bytes that this takes; what went wrong is an exception."""
        try:
            payload = read_answer(data, self._max_payload)
        except RemoteError as error:
            return error, 0
        except Problem as problem:
            self._counted.refused[problem.status] += 1
            self._reported.once(f"an answer of a program that serves {self._cluster}", problem)
            return RemoteError(problem.code, f"the program has answered: {problem.detail}"), 0
        return payload, len(data) if isinstance(payload, bytes | str) else AS_VALUE * len(data)


@final
class _Program(AskedProgram[bytes]):
    """The door's end of one program; see ``Program``."""

    def __init__(self, client: Client, pipe: Pipe, counted: NngStatistics) -> None:
        super().__init__("nng")
        self.client: Final = client
        self.capacity = 1
        self._pipe = pipe
        self._counted = counted
        self._numbers = itertools.count(1)
        self._sending: asyncio.Task[None] | None = None

    async def ask(self, request: Request) -> object:
        """See ``Program``."""
        number = (next(self._numbers) & 0x7FFF_FFFF | 1 << 31).to_bytes(4, "big")
        data = number + request_message(request, max(0.0, request.deadline - trio.current_time()))
        if len(data) > MAX_SENT:
            raise RemoteError("too_large", f"{len(data)} bytes for a program of nng, which takes {MAX_SENT} at most")
        await self._until_sent()
        if self._pipe.is_ended:
            raise Unserved(DRAINING)
        self._send(data)
        asked = self._asked[number] = Asked()
        try:
            reply = await asked.reply
            self._counted.paused += await self.client.pace(asked.size)
            return reply
        finally:
            del self._asked[number]
            self.client.release(asked.size)

    async def _until_sent(self) -> None:
        """Wait until a former request that nobody waits for any more is written."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait([self._sending])

    def _send(self, data: bytes) -> None:
        """Have a message written, also if its caller gives it up in the middle; its bytes count until it is."""
        try:
            self.client.hold(len(data))
        except Problem as problem:
            raise Unserved(OVERLOADED, problem.detail, _RETRY_AFTER) from None
        self._sending = asyncio.ensure_future(self._pipe.send(data))
        self._sending.add_done_callback(lambda _: self.client.release(len(data)))

    def answer(self, number: bytes, reply: object, size: int) -> None:
        """Give its answer to the caller of a request; one that nobody waits for is passed over."""
        asked = self._asked.get(number)
        if asked is None or asked.reply.done():
            return
        try:
            self.client.hold(size)
            asked.size = size
        except Problem as problem:
            reply = RemoteError(problem.code, f"the program has answered: {problem.detail}")
        if isinstance(reply, RemoteError):
            asked.reply.set_exception(reply)
        else:
            asked.reply.set_result(reply)

    async def broadcast(self, _: Message, /) -> bool:
        """See ``Program``: nng has nothing for a broadcast."""
        return False

    def end(self) -> None:
        """See ``Program``."""
        self._pipe.end()
