"""Server-sent events: what a client is told of the topics that it follows.

Source: WHATWG HTML, "Server-sent events".  Each event has the number of its stream and its own in it as its id.  A
client that comes back with an id has missed what was published in between: it is told so by an event named ``gap``,
whose ``missed`` is null, as nobody counts for those who are away.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import iris.aio
from iris.doors.clients import Client
from iris.doors.http.answering import Stream, Write, first_of
from iris.doors.problems import Problem
from iris.doors.values import enveloped
from iris.patterns.pubsub.subscribe import Event, SubscriptionLimits

LIMITS: Final = SubscriptionLimits(events=1024, bytes=1 << 20)
"""What waits for a client that does not read; beyond it the oldest events are lost, and the next one says how many."""

MAX_PATTERNS: Final = 16
"""Topics that one stream may follow."""

_BEAT: Final = 15.0
"""Seconds between comments, by which both sides see that the connection still works."""


def follow(node: iris.aio.Node, client: Client, patterns: list[str], group: str | None, last: str | None) -> Stream:
    """Return the stream of the events that match any of some patterns."""
    name, numbers = secrets.token_hex(4), itertools.count()

    def event_text(kind: str | None, told: dict[str, Any]) -> bytes:
        head = f"event: {kind}\n" if kind else f"id: {name}-{next(numbers)}\n"
        return f"{head}data: {json.dumps(told, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()

    async def write(begin: Callable[[], Awaitable[None]], send: Write) -> None:
        writing = asyncio.Lock()

        async def follow_one(events: iris.aio.Subscription) -> None:
            async for event in events:
                piece = event_text(None, told_of(event))
                async with writing:
                    await send(piece)

        async def beat() -> None:
            while True:
                await asyncio.sleep(_BEAT)
                async with writing:
                    await send(b":\n\n")

        async with client.streaming(), AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(node.subscribe(pattern, group=group, limits=LIMITS))
                for pattern in patterns
            ]
            await begin()
            if last:
                await send(event_text("gap", {"missed": None}))
            await first_of(beat(), *(follow_one(events) for events in opened))

    def end(problem: Problem) -> bytes:
        return event_text("end", problem.document())

    return Stream("text/event-stream", write, end)


def told_of(event: Event) -> dict[str, Any]:
    """Return an event as a map that JSON can hold."""
    told: dict[str, Any] = {"topic": event.topic, **enveloped(event.payload), "missed": event.missed}
    if event.retained:
        told["retained"] = True
    if event.headers:
        told["headers"] = dict(event.headers)
    return told
