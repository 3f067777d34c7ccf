"""Answering: takes the messages of REQ or SURVEYOR, many at a time, and answers each.

There are so many *workers*.  One takes a message and answers it before it takes another one.  Until one is free, each
connection waits with one message, first come, first served.  There are more workers than may be busy, so that one is
free to say that the others are:

- with calls: as many as the client may have (``ClientLimits``), of one connection ``CALLS_OF_ONE``.  When a connection
  ends, its calls are stopped.
- with answers that are not taken: the connection that has kept its worker longest is ended when there are more than
  ``_UNTAKEN``, and else after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, final

from iris.doors.clients import ClientLimits
from iris.doors.nng.counters import NngStatistics, keep_running
from iris.doors.nng.messages import refusal_of
from iris.doors.nng.sockets import Endpoint, Pipe, Received
from iris.doors.problems import Problem, problem_of
from iris.kernel.errors import IrisError

_logger: Final = logging.getLogger("iris")

CALLS_OF_ONE: Final = ClientLimits().calls // 2
"""Calls of one connection at a time."""

_UNTAKEN: Final = 32
"""Answers that wait to be taken."""

_HURRY: Final = 0.5
"""Seconds after which one of them is late if there are more."""

_PATIENCE: Final = 30.0
"""Seconds after which it is late in any case.  A slow line takes 1 MiB in that time."""

WORKERS: Final = 2 * ClientLimits().calls
"""Number of workers: half of them may call, and as many wait for their answers to be taken, or are free."""


@final
class Answering:
    """Answers all that comes to one endpoint.

    Args:
        endpoint: the endpoint.
        counted: counters of what is done.
        serve: returns the answer to a message; what it raises is reported to the client.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        counted: NngStatistics,
        serve: Callable[[bytes], Awaitable[bytes]],
    ) -> None:
        self.endpoint: Final = endpoint
        self._counted = counted
        self._serve = serve
        self._calls: Counter[int] = Counter()
        """Calls of each connection that are at work, by its number."""
        self._untaken: dict[object, tuple[float, Pipe]] = {}
        """Answers that wait: the time since when, and the connection; the oldest first."""

    async def run(self) -> None:
        """Answer until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_running("the look at answers that are not taken", self._end_late_ones))
            for _ in range(WORKERS):
                tasks.create_task(keep_running("an answer", self._work))

    async def _work(self) -> None:
        while True:
            received = await self.endpoint.receive()
            answer = await self._answer(received.data, received.pipe)
            if answer is not None:
                self._counted.answered += 1
                await self._give(received, answer)

    async def _answer(self, data: bytes, connection: Pipe) -> bytes | None:
        """Return the answer to a message; None if nobody waits for it any more."""
        if self._calls[connection.number] >= CALLS_OF_ONE:
            self._counted.refused[429] += 1
            detail = f"{CALLS_OF_ONE} calls at a time are the limit of a connection"
            return refusal_of(Problem(429, "too_many_calls", detail, retry_after=1))
        call = asyncio.ensure_future(self._call(data))
        self._calls[connection.number] += 1
        if connection.gone.done():
            call.cancel()
        try:
            ends: tuple[asyncio.Future[bytes] | asyncio.Future[None], ...] = (call, connection.gone)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if call.cancel():  # else it is done, and what waits for it nevertheless waits for a turn of the loop
                await asyncio.wait([call])
            self._calls[connection.number] -= 1
            if not self._calls[connection.number]:
                del self._calls[connection.number]
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
        except Exception:
            _logger.exception("the door failed a message of nng", extra={"door": "nng"})
            problem = Problem(500, "failed", "the door has failed: its log says how")
        self._counted.refused[problem.status] += 1
        return refusal_of(problem)

    async def _give(self, received: Received, answer: bytes) -> None:
        """Send an answer; it is at its end as well when its connection has ended."""
        this = object()
        self._untaken[this] = asyncio.get_running_loop().time(), received.pipe
        try:
            await received.pipe.send(received.header + answer)
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
