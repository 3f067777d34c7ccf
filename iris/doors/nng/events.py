"""Events: what PUSH publishes, and what SUB follows.

nng filters events at the subscriber, by the first bytes of a message: every connection of SUB is sent all events that
the client may subscribe to.  Of those that wait for a connection that does not read the oldest are dropped, and SP has
no way to say so.  So events are numbered, each topic by itself: who follows a topic sees a gap in its numbers.  In
front of the number stands what is drawn anew when the counting begins anew, as after the start of another door.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final, final

import iris.aio
from iris.doors.clients import CLIENT_HEADER, Client, Clients
from iris.doors.nng.counters import LoggedOnce, NngStatistics, keep_running
from iris.doors.nng.messages import MAX_SENT, event_of, read_message
from iris.doors.nng.sockets import Endpoint
from iris.doors.options import PUSH
from iris.doors.problems import Problem, problem_of
from iris.doors.tokens import permits
from iris.kernel.errors import IrisError
from iris.patterns.pubsub.subscribe import AnnouncedLosses, Event

_logger: Final = logging.getLogger("iris")

_TOPICS: Final = 4096
"""Topics of which the door remembers the number."""

_AT_ONCE: Final = 64
"""Events until others have a turn."""

_LOOK: Final = 15.0
"""Seconds between looks for connections that do not read: those end that have taken nothing for two of them."""

_PAUSE: Final = 1.0
"""Seconds until it is tried again where the client is gone, or its topics cannot be subscribed to."""


@final
class TopicNumbers:
    """Numbers the events of each topic: ``RUN-1``, ``RUN-2`` and so on.  A forgotten topic has another RUN."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def begin_anew(self) -> None:
        """Have all topics counted anew: events of unknown number are lost."""
        self._last.clear()

    def next(self, topic: str) -> str:
        """Return the number of the next event."""
        run, last = self._last.get(topic) or (secrets.token_hex(4), 0)
        self._last[topic] = run, last + 1
        self._last.move_to_end(topic)
        if len(self._last) > _TOPICS:
            self._last.popitem(last=False)
        return f"{run}-{last + 1}"


@final
class Following:
    """Sends to all connections of SUB what the client may subscribe to."""

    def __init__(self, node: iris.aio.Node, clients: Clients, name: str, endpoint: Endpoint, counted: NngStatistics):
        self._node = node
        self._clients = clients
        self._name = name
        self._endpoint = endpoint
        self._counted = counted
        self._numbers = TopicNumbers()
        self._reported = LoggedOnce()
        self._in_a_row = 0

    async def run(self) -> None:
        """Do so for ever; begin anew when the rights of the client have changed."""
        while True:
            try:
                client = self._clients.named(self._name)
                async with client.streaming(), asyncio.TaskGroup() as tasks:
                    patterns = client.token.subscribe
                    for number, pattern in enumerate(patterns):
                        follow = partial(self._follow, client, pattern, patterns[:number])
                        tasks.create_task(keep_running(f"following {pattern}", follow))
                    await asyncio.Event().wait()  # until its token ends
            except Problem as problem:
                self._reported.once("nothing is followed", problem)
            await asyncio.sleep(_PAUSE)

    async def _follow(self, client: Client, pattern: str, earlier: Sequence[str]) -> None:
        """Follow one pattern, without the events that an earlier one matches too."""
        missed = 0
        while True:
            self._numbers.begin_anew()  # nobody knows what was published before
            try:
                async with client.subscribed(self._node, pattern) as events:
                    losses = AnnouncedLosses(events)
                    try:
                        async for event in events:
                            self._counted.missed += losses.count()
                            missed += losses.before(event)
                            if not any(permits(one, event.topic) for one in earlier):
                                missed = self._hand_over(event, missed)
                            self._in_a_row += 1
                            if self._in_a_row % _AT_ONCE == 0:
                                await asyncio.sleep(0)
                    finally:
                        self._counted.missed += losses.count()
            except (Problem, IrisError) as error:
                problem = problem_of(error) if isinstance(error, IrisError) else error
                self._reported.once(f"{pattern} is not followed", problem)
            await asyncio.sleep(_PAUSE)

    def _hand_over(self, event: Event, missed: int) -> int:
        """Send an event to all; return how many are missed that could not be reported with it."""
        number = self._numbers.next(event.topic)
        message = event_of(event.topic, event.payload, number, missed=missed, retained=event.retained)
        if len(message) > MAX_SENT:
            detail = f"an event on {event.topic} has {len(message)} bytes, and a message to nng {MAX_SENT} at most"
            self._reported.once("an event is lost", Problem(413, "too_large", detail))
            self._counted.missed += 1
            return missed + 1
        if not self._endpoint.connections:
            return missed
        self._endpoint.send_to_all(message)
        self._counted.followed += 1
        return 0


async def end_stalled(endpoints: Collection[Endpoint], counted: NngStatistics) -> None:
    """End connections that take nothing of what is sent to them, for ever."""
    while True:
        await asyncio.sleep(_LOOK)
        counted.stalled += sum(endpoint.end_stalled() for endpoint in endpoints)


@final
class Taking:
    """Publishes what PUSH sends, for the client of a door.  nng has no way to tell a PUSH what went wrong."""

    def __init__(
        self,
        node: iris.aio.Node,
        clients: Clients,
        name: str,
        max_payload: int,
        endpoint: Endpoint,
        counted: NngStatistics,
    ) -> None:
        self._node = node
        self._clients = clients
        self._name = name
        self._max_payload = max_payload
        self._endpoint = endpoint
        self._counted = counted
        self._reported = LoggedOnce()

    async def run(self) -> None:
        """Publish for ever, one after the other: who sends faster is held up."""
        while True:
            try:
                received = await self._endpoint.receive()
                await self._publish(received.data)
            except Problem as error:
                self._refuse(error)
            except IrisError as error:
                self._refuse(problem_of(error))
            except Exception:
                _logger.exception("the door failed a message of nng", extra={"door": "nng"})
                self._counted.refused[500] += 1

    def _refuse(self, problem: Problem) -> None:
        self._counted.refused[problem.status] += 1
        self._reported.once("a message of PUSH is refused", problem)

    async def _publish(self, data: bytes) -> None:
        client = self._clients.named(self._name)
        paused = await client.pace(len(data))
        self._counted.paused += paused
        await client.processor.rest()
        with client.processor.working():
            topic, payload, options = read_message(data, "a topic", self._max_payload, PUSH)
        client.check("publish", topic)
        with client.calling():
            await client.publish(self._node, topic, payload, headers={CLIENT_HEADER: client.name}, **options)
        self._counted.published += 1
