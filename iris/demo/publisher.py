"""Publisher of the demo: every flight is an event, and each is on the bridge's disk before it counts as sent.

``python -m iris.demo.publisher ROWS`` publishes at the order ``publish`` and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import trio

import iris
from iris.demo.checks import count_since
from iris.demo.control import Progress, receive_orders, report_news, report_result
from iris.demo.data import flight_events, read_flights

_CONFIRMATION: Final = 30.0
_BRIDGE: Final = 20.0
_RETRY: Final = 0.05


async def _publish_rest(node: iris.Node, events: Iterator[tuple[str, bytes]], progress: Progress) -> None:
    before = progress.done
    async with node.confirming(timeout=_CONFIRMATION) as confirming:
        for topic, payload in events:
            await confirming.publish(topic, payload)
            progress.reach(before + confirming.confirmed)
    progress.reach(before + confirming.confirmed)


async def _publish_first(node: iris.Node, topic: str, payload: bytes) -> None:
    """Publish the first event as soon as the bridge has subscribed; what was not sent may be sent again."""
    with trio.fail_after(_BRIDGE):
        while True:
            try:
                await node.publish(topic, payload, confirm=True, timeout=_CONFIRMATION)
                return
            except iris.NotSent:
                await trio.sleep(_RETRY)


async def _publish_all(rows: int) -> None:
    events = flight_events(read_flights(rows))
    orders = receive_orders()
    async with iris.open_node("publisher") as node:
        await node.wait_for("bridge", timeout=_BRIDGE)
        report_news("ready")
        if await anext(orders, None) != "publish":
            return
        before = node.statistics().events
        progress = Progress()
        await _publish_first(node, *next(events))
        progress.advance()
        await _publish_rest(node, events, progress)
        counters = count_since(before, node.statistics().events)
        report_result(confirmed=progress.done, counters=counters.as_fields())
        await anext(orders, None)  # the airport ends it


if __name__ == "__main__":
    trio.run(_publish_all, int(sys.argv[1]))
