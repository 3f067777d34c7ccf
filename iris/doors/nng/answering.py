"""Answering: takes the messages of a REP or RESPONDENT socket, many at a time, and answers each.

nng gives a message to a *context*, which answers it before it takes another one.  Until one is free, each connection
waits with one message, first come, first served.  There are more contexts than may be busy, so that one is free to say
that the others are:

- with calls: as many as the client may have (``ClientLimits``), of one connection ``CALLS_OF_ONE``.  When a connection
  ends, its calls are stopped.
- with answers that are not taken: the connection that has kept its context longest is ended when there are more than
  ``_UNTAKEN``, and else after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

import pynng

from iris.doors.clients import ClientLimits
from iris.doors.nng.counters import NngStatistics, keep_running
from iris.doors.nng.messages import refusal_of
from iris.doors.nng.sockets import Closed, Endpoint, NngError, Pipe, receive, send
from iris.doors.problems import Problem, problem_of
from iris.kernel.errors import IrisError

_log: Final = logging.getLogger("iris")

CALLS_OF_ONE: Final = ClientLimits().calls // 2
"""Calls of one connection at a time."""

_UNTAKEN: Final = 32
"""Answers that wait to be taken."""

_HURRY: Final = 0.5
"""Seconds after which one of them is late if there are more."""

_PATIENCE: Final = 30.0
"""Seconds after which it is late in any case.  A slow line takes 1 MiB in that time."""

CONTEXTS: Final = 2 * ClientLimits().calls
"""Contexts of nng: as many may call, and as many wait to be taken or be free."""

_PAUSE: Final = 0.1
"""Seconds without receiving where nng has no memory for it."""


@final
class Answering:
    """Answers all that comes by one socket.

    Args:
        socket: socket of REP or RESPONDENT; it does not listen yet.
        max_connections: at a time.
        counted: counters of what is done.
        serve: returns the answer to a message; what it raises is reported to the client.
    """

    def __init__(
        self,
        socket: pynng.Socket,
        max_connections: int,
        counted: NngStatistics,
        serve: Callable[[bytes], Awaitable[bytes]],
    ) -> None:
        self.endpoint: Final = Endpoint(socket, max_connections, self._on_ended)
        self._counted = counted
        self._serve = serve
        self._calls: dict[int, set[asyncio.Task[bytes]]] = {}
        """Tasks at work for each connection, by its number."""
        self._untaken: dict[object, tuple[float, Pipe]] = {}
        """Answers that wait: the time since when, and the connection; the oldest first."""

    async def run(self) -> None:
        """Answer until the socket is closed."""
        async with asyncio.TaskGroup() as tasks:
            late = tasks.create_task(keep_running("the look at answers that are not taken", self._end_late_ones))
            works = [tasks.create_task(keep_running("an answer", self._work)) for _ in range(CONTEXTS)]
            await asyncio.wait(works)
            late.cancel()

    async def _work(self) -> None:
        context = self.endpoint.socket.new_context()
        try:
            while True:
                try:
                    data, connection = await receive(context)
                    answer = await self._answer(data, connection)
                    if answer is not None:
                        self._counted.answered += 1
                        await self._give(context, answer, connection)
                except Closed:
                    return
                except NngError as error:
                    _log.warning("the door for nng: %s", error, extra={"door": "nng", "reason": type(error).__name__})
                    await asyncio.sleep(_PAUSE)
        finally:
            with contextlib.suppress(Closed):  # with its socket
                context.close()

    async def _answer(self, data: bytes, connection: Pipe) -> bytes | None:
        """Return the answer to a message; None if nobody waits for it any more."""
        calls = self._calls.setdefault(connection.number, set())
        if len(calls) >= CALLS_OF_ONE:
            self._counted.refused[429] += 1
            told = f"{CALLS_OF_ONE} calls at a time are the limit of a connection"
            return refusal_of(Problem(429, "too_many_calls", told, retry_after=1))
        call = asyncio.ensure_future(self._call(data))
        calls.add(call)
        if not self.endpoint.has(connection):
            call.cancel()
        try:
            await asyncio.wait([call])
        finally:
            if call.cancel():  # else it is done, and what waits for it nevertheless waits for a turn of the loop
                await asyncio.wait([call])
            calls.discard(call)
            if not calls:
                self._calls.pop(connection.number, None)
        if call.cancelled():
            self._counted.given_up += 1
            return None
        return call.result()

    async def _call(self, data: bytes) -> bytes:
        try:
            return await self._serve(data)
        except Problem as error:
            problem = error
        except IrisError as error:
            problem = problem_of(error)
        except Exception:  # noqa: BLE001 -- it is told in full
            _log.exception("the door failed a message of nng", extra={"door": "nng"})
            problem = Problem(500, "failed", "the door has failed: its log says how")
        self._counted.refused[problem.status] += 1
        return refusal_of(problem)

    async def _give(self, context: pynng.Context, answer: bytes, connection: Pipe) -> None:
        """Send an answer; it is at its end as well when its connection has ended."""
        this = object()
        self._untaken[this] = asyncio.get_running_loop().time(), connection
        try:
            await send(context, answer)
        finally:
            del self._untaken[this]

    async def _end_late_ones(self) -> None:
        """End connections that do not take their answers, for ever."""
        while True:
            await asyncio.sleep(_HURRY / 2)
            now = asyncio.get_running_loop().time()
            left = [*self._untaken.values()]
            while left and left[0][0] + (_HURRY if len(left) > _UNTAKEN else _PATIENCE) <= now:
                slowest = left[0][1]
                self._end(slowest)
                left = [one for one in left if one[1].number != slowest.number]

    def _end(self, connection: Pipe) -> None:
        if self.endpoint.has(connection):
            self._counted.stalled += 1
            connection.end()

    def _on_ended(self, number: int) -> None:
        for call in self._calls.get(number, ()):
            call.cancel()
