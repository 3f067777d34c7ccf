"""Server-sent events: what a client is told of the topics that it follows.

Source: WHATWG HTML, "Server-sent events".  Each event has the number of its stream and its own in it as its id.  What a
stream has lost is told as ``missed``, of which the sum is exact: with the next event, and by an event named ``gap``
where none comes.  A client that comes back with an id has missed what was published in between: that is a ``gap`` whose
``missed`` is null, as nobody counts for those who are away.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import final

import iris.aio
from iris.doors.clients import Client
from iris.doors.http.answering import Begin, Write, first_of
from iris.doors.http.limits import HttpLimits, HttpStatistics
from iris.doors.problems import Problem
from iris.doors.values import enveloped, to_line
from iris.patterns.pubsub.subscribe import AnnouncedLosses, Event


@final
class Follower:
    """Follows topics for clients."""

    def __init__(self, node: iris.aio.Node, client: Client, limits: HttpLimits, counted: HttpStatistics) -> None:
        self._node = node
        self._client = client
        self._limits = limits
        self._counted = counted

    def follow(
        self, patterns: list[str], group: str | None, *, came_back: bool
    ) -> Callable[[Begin, Write], Coroutine[object, object, None]]:
        """Return what writes the events that match any of some patterns."""
        name, numbers = secrets.token_hex(4), itertools.count()

        async def write(begin: Begin, send: Write) -> None:
            writing = asyncio.Lock()

            async def follow_one(events: iris.aio.Subscription, losses: AnnouncedLosses) -> None:
                try:
                    async for event in events:
                        with self._client.processor.working():
                            piece = _text(f"id: {name}-{next(numbers)}", event_as_map(event, losses.before(event)))
                        async with writing:
                            await send(piece)
                        self._counted.delivered += 1
                        self._counted.missed += losses.count()
                        await self._client.processor.rest()  # of many that wait here, others wait for one only
                finally:
                    self._counted.missed += losses.count()

            async def beat(followed: list[AnnouncedLosses]) -> None:
                while True:
                    await asyncio.sleep(self._limits.beat)
                    async with writing:
                        missed = sum(losses.unreported() for losses in followed)
                        await send(_text("event: gap", {"missed": missed}) if missed else b":\n\n")

            async with self._client.streaming(), AsyncExitStack() as stack:
                opened = [
                    await stack.enter_async_context(self._client.subscribed(self._node, pattern, group))
                    for pattern in patterns
                ]
                await begin()
                if came_back:
                    await send(_text("event: gap", {"missed": None}))
                followed = [AnnouncedLosses(events) for events in opened]
                await first_of(beat(followed), *map(follow_one, opened, followed))

        return write


def end_of(problem: Problem) -> bytes:
    """Return the last event of a stream that ends by a problem."""
    return _text("event: end", problem.document())


def _text(head: str, fields: dict[str, object]) -> bytes:
    return b"%s\ndata: %s\n\n" % (head.encode(), to_line(fields))


def event_as_map(event: Event, missed: int) -> dict[str, object]:
    """Return an event as a map that JSON can hold."""
    fields: dict[str, object] = {"topic": event.topic, **enveloped(event.payload), "missed": missed}
    if event.retained:
        fields["retained"] = True
    if event.headers:
        fields["headers"] = dict(event.headers)
    return fields
