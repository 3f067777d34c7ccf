"""Publisher of the demo: every flight is an event, and each is on the bridge's disk before it counts as sent.

``python -m iris.demo.publisher ROWS`` is the cluster ``publisher``, as soon as it has found the bridge.  The operation
``publish`` publishes the flights, and replies with what became of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import trio

import iris
from iris.demo.checks import count_all, count_since
from iris.demo.data import flight_events, read_flights
from iris.demo.progress import Progress

_CONFIRMATION: Final = 30.0
_BRIDGE: Final = 20.0
_RETRY: Final = 0.05


async def publish_all(node: iris.Node, events: Iterator[tuple[str, bytes]], progress: Progress) -> dict[str, Any]:
    """Publish all events; return how many were confirmed, and the counters."""
    before = node.statistics().events
    await _publish_first(node, *next(events))
    progress.advance()
    async with node.confirming(timeout=_CONFIRMATION) as confirming:
        for topic, payload in events:
            await confirming.publish(topic, payload)
            progress.done = 1 + confirming.confirmed
    progress.done = 1 + confirming.confirmed
    counters = count_since(before, node.statistics().events)
    return {"confirmed": progress.done, "counters": counters.as_fields()}


async def _publish_first(node: iris.Node, topic: str, payload: bytes) -> None:
    """Publish the first event as soon as the bridge has subscribed; what was not sent may be sent again."""
    with trio.fail_after(_BRIDGE):
        while True:
            try:
                await node.publish_confirmed(topic, payload, timeout=_CONFIRMATION)
                return
            except iris.NotSent:
                await trio.sleep(_RETRY)


async def _serve(rows: int) -> None:
    flights, progress, publisher = read_flights(rows), Progress(), iris.Service("publisher")
    publisher.request("progress")(progress.report)
    async with iris.open_node(publisher.name) as node:

        @publisher.request("books")
        def report_books(_request: iris.Request) -> object:
            return {"publish": count_all(node.statistics().events).as_fields()}

        @publisher.request
        async def publish(_request: iris.Request) -> object:
            return await publish_all(node, flight_events(flights), progress)

        await node.wait_for("bridge", timeout=_BRIDGE)
        async with node.join(publisher.name, publisher):
            await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(_serve, int(sys.argv[1]))
