"""Programs that read a bridge's log, by one WebSocket each: in a group that goes on where it was, or to have a look."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, final

from starlette.websockets import WebSocket

import iris.aio
from iris.doors.clients import Client
from iris.doors.http.bridging import WAIT, Dialogue, DoorBridge, unknown
from iris.doors.http.encoding import NOTHING, Head, number_of
from iris.doors.http.tunnels import until_closed
from iris.doors.options import READ, read_options
from iris.doors.problems import Problem
from iris.kernel.numerals import read_whole

PROTOCOL: Final = "iris.read.1"
"""The WebSocket protocol of a program that reads the log."""

_LIMIT: Final = 4
"""Batches that a program has and has not committed, if it does not say."""

_MAX_LIMIT: Final = 64
_MAX_TOPICS: Final = 64

_AHEAD: Final = 8 * (256 << 10)
"""Bytes that a bridge sends ahead of the program: they count among its client's."""


async def read_log(bridge: DoorBridge, client: Client, socket: WebSocket, max_message: int) -> int:
    """Have a program read topics of the log, until one of both ends it.

    Returns the status of the problem by which it ended, or 0.
    """

    async def read() -> None:
        query = socket.query_params
        options = read_options([one for one in query.multi_items() if one[0] != "topic"], READ)
        topics, group = query.getlist("topic"), options.get("group")
        if not 0 < len(topics) <= _MAX_TOPICS:
            raise Problem(400, "malformed", f"say topic= once for each, {_MAX_TOPICS} times at most")
        for topic in topics:
            client.check("read", topic if group is None else f"{group}/{topic}")
        limit, wait = options.pop("limit", _LIMIT), options.pop("wait", WAIT)
        if not 0 < limit <= _MAX_LIMIT:
            raise Problem(400, "malformed", f"limit is a whole number from 1 to {_MAX_LIMIT}")
        if "start" in options:
            options["start"] = _start(options["start"])
        client.check_rate()
        async with client.streaming(), bridge.lent(client, wait):
            with client.holding() as hold:
                hold(_AHEAD)
                async with bridge.handle.consume(*topics, **options) as consumer:
                    reading = _Reading(client, socket, consumer, limit)
                    reading.post({"type": "ready", "limit": limit, "max_message": max_message})
                    await bridge.converse(reading)

    return await until_closed(socket, PROTOCOL, read)


_WORDS: Final[Mapping[str, Literal["earliest", "latest"]]] = {"earliest": "earliest", "latest": "latest"}


def _start(text: str) -> Literal["earliest", "latest"] | datetime | int:
    if text in _WORDS:
        return _WORDS[text]
    offset = read_whole(text)
    if offset is not None:
        return offset
    try:
        start = datetime.fromisoformat(text)
    except ValueError:
        start = None
    if start is None or start.tzinfo is None:
        detail = f"start is {text!r:.60}: use earliest, latest, an offset, or a date of ISO 8601 with its zone"
        raise Problem(400, "malformed", detail)
    return start


@final
class _Reading(Dialogue):
    """A program that reads the log."""

    def __init__(self, client: Client, socket: WebSocket, consumer: iris.aio.Consumer, limit: int) -> None:
        super().__init__(client, socket)
        self._consumer = consumer
        self._limit = limit
        self._has: dict[int, iris.aio.LogBatch] = {}

    async def work(self) -> None:
        """See ``Dialogue``."""
        async for batch in self._consumer:
            if self.drains:
                break
            about = {
                "type": "batch", "shard": batch.shard, "events": len(batch), "lag": batch.lag, "missed": batch.missed,
                "gaps": batch.gaps, "expired": batch.expired,
            }  # fmt: skip
            number = await self._give(*((_head(event), event.payload) for event in batch), (about, NOTHING))
            self._has[number] = batch
            await self.pace()
            while self.is_at >= self._limit:
                await self.until_done()
        else:
            self.post({"type": "end"})
            self.finish()
        await asyncio.Event().wait()

    async def _give(self, *messages: tuple[Head, object]) -> int:
        while True:
            try:
                return self.give(*messages)
            except Problem:
                if not self.is_at:
                    raise
                await self.until_done()  # which makes room

    def handle(self, head: Head, payload: object) -> None:  # noqa: ARG002 -- no message here has one
        """See ``Dialogue``."""
        if head.get("type") != "commit":
            raise unknown(head)
        number = number_of(head)
        batch = self._has.pop(number, None)
        if batch is not None:
            self.settle(number, batch.commit)


def _head(event: Any) -> dict[str, Any]:
    key = {} if event.key is None else {"key": event.key}
    return {
        "type": "event", "topic": event.topic, **key, "headers": dict(event.headers), "sender": event.sender,
        "timestamp": event.timestamp, "offset": event.offset,
    }  # fmt: skip
