"""Support shared by tests of publish/subscribe."""

from __future__ import annotations

import trio

from iris.patterns.pubsub.subscribe.events import Event
from iris.patterns.pubsub.subscribe.subscription import Subscription
from tests.support.meshes import MeshNode


async def publish(node: MeshNode, topic: str, *payloads: object) -> None:
    for payload in payloads:
        await node.pubsub.publishing.publish(topic, payload)


async def collect(subscription: Subscription) -> list[Event]:
    """Return everything that comes until nothing has come for two seconds."""
    events: list[Event] = []
    while True:
        with trio.move_on_after(2) as scope:
            events += await subscription.receive_batch()
        if scope.cancelled_caught:
            return events


def missed(events: list[Event]) -> int:
    return sum(event.missed for event in events)


async def take_all(subscription: Subscription, taken: list[Event]) -> None:
    """Take events for ever."""
    async for event in subscription:
        taken.append(event)  # noqa: PERF401 -- they are looked at while more come
