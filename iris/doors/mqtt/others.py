"""The other doors for MQTT of this realm: one of them may have a connection with an identifier that has come here.

A client that comes back may come to another door, while the one of before has not noticed that it is gone, and would
publish its will after all that is published here.  So every door subscribes to one topic, and says there which
identifier has come to it; who has the former connection ends it, publishes its will, and answers.  As long as there is
one door, nothing is published there.

Only what doors of the same cluster have published themselves counts, not what their clients publish through them.  The
topic shows a hash of clients and identifiers.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, final

import iris.aio
from iris.doors.clients import CLIENT_HEADER
from iris.kernel.errors import IrisError
from iris.kernel.names import NodeId
from iris.patterns.pubsub.subscribe import Event

_logger: Final = logging.getLogger("iris")

TOPIC: Final = "iris.door.mqtt"

_WITHIN: Final = 2.0
"""Seconds that other doors have to answer.  One that does not is not waited for again until it does."""

End = Callable[[str, NodeId], Awaitable[None]]
"""Function that ends the connection of a key that has come to another node's door, and returns after its will."""


def key_of(client: str, client_id: str) -> str:
    """Return by what doors know the identifier of a client."""
    return hashlib.sha256(f"{client}\0{client_id}".encode("utf-8", "surrogatepass")).hexdigest()


@final
class OtherDoors:
    """Reports the identifiers that have come here, and receives those that have come elsewhere.

    Args:
        node: node of this door.
        end: called for what has come elsewhere; may take long.
    """

    def __init__(self, node: iris.aio.Node, end: End) -> None:
        self._node = node
        self._end = end
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[set[NodeId], asyncio.Event]] = {}
        """Doors that have not answered yet, by the number of the message."""
        self._silent: set[NodeId] = set()

    async def run(self) -> None:
        """Take what other doors say, until cancelled."""
        try:
            async with self._node.subscribe(TOPIC, allow=(self._node.name,)) as events, asyncio.TaskGroup() as tasks:
                async for event in events:
                    if isinstance(event.payload, dict) and CLIENT_HEADER not in event.headers:
                        self._receive(event, tasks)
        except* IrisError as group:
            effect = "does not learn who has come back to another door"
            _logger.info("the door for MQTT %s: %s", effect, group.exceptions[0], extra={"door": "mqtt"})

    async def end_elsewhere(self, key: str) -> None:
        """Have other doors end the connection of a key; return when they have, or do not answer in time."""
        pubsub = self._node._inner._pubsub
        if pubsub.subscriber_links.pending(TOPIC):
            await self._node._guest.call(partial(pubsub.subscriber_links.reach, TOPIC))
        others = pubsub.subscribers_of(TOPIC) - {self._node.id} - self._silent
        if not others:
            return
        number, answered = next(self._numbers), asyncio.Event()
        self._asked[number] = others, answered
        try:
            async with asyncio.timeout(_WITHIN):
                await self._node.publish(TOPIC, {"came": key, "number": number})
                await answered.wait()
        except TimeoutError:
            self._silent |= others
        except IrisError as error:
            _logger.info("the door for MQTT cannot say who has come: %s", error, extra={"door": "mqtt"})
        finally:
            del self._asked[number]

    def _receive(self, event: Event, tasks: asyncio.TaskGroup) -> None:
        said: dict[str, object] = event.payload
        if event.publisher == self._node.id:
            return
        self._silent.discard(event.publisher)
        number = said.get("number")
        if isinstance(key := said.get("came"), str) and isinstance(number, int):
            tasks.create_task(self._give_up(key, event.publisher, number))
        elif said.get("answer") == self._node.id and isinstance(number, int) and number in self._asked:
            waited_for, answered = self._asked[number]
            waited_for.discard(event.publisher)
            if not waited_for:
                answered.set()

    async def _give_up(self, key: str, door: NodeId, number: int) -> None:
        await self._end(key, door)
        try:
            await self._node.publish(TOPIC, {"answer": door, "number": number})
        except IrisError as error:
            _logger.info("the door for MQTT cannot answer another one: %s", error, extra={"door": "mqtt"})
