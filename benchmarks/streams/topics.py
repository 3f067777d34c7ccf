"""What topics and patterns hold in memory: a publisher with a million of them, and a member with as many as it may."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any, Final

import iris
from benchmarks.streams.nodes import LOOPBACK, tcp_address, wait_told
from benchmarks.streams.processes import open_run, processor_seconds, resident, say
from benchmarks.streams.table import heading, row

MIB: Final = 2**20


async def _publisher(task: Mapping[str, Any]) -> None:
    async with iris.open_node(listen=LOOPBACK) as node:
        await node.publish("first", b"x")  # everything that is made once is made now
        gc.collect()
        say(ready=tcp_address(node))
        await wait_told()
        for number in range(task["topics"]):
            await node.publish(f"orders.{number}.created", b"x")
        say(done=node.statistics().publishing.published)
        await wait_told()


async def _subscriber(task: Mapping[str, Any]) -> None:
    received = missed = 0
    async with (
        iris.open_node(listen=LOOPBACK, seeds=[task["seed"]]) as node,
        node.subscribe("orders.>", overflow="wait") as events,
    ):
        gc.collect()
        say(ready=True)
        async for event in events:
            received += 1
            missed += event.missed
            if received + missed >= task["topics"]:
                break
        say(received=received, missed=missed)
        await wait_told()


ROLES = {"publisher": _publisher, "subscriber": _subscriber}


def _publish(topics: int, *, heard: bool) -> None:
    """Publish once on each of many topics, and print what the publisher and a subscriber grew by."""
    with open_run() as run:
        publisher = run.start("topics", "publisher", topics=topics)
        seed = publisher.hear("ready")
        parts = [publisher]
        if heard:
            parts.append(run.start("topics", "subscriber", topics=topics, seed=seed))
            parts[1].hear("ready")
        before = [resident(part.pid) for part in parts]
        used = processor_seconds(publisher.pid)
        publisher.tell()
        published = publisher.hear("done", 3600)
        used = processor_seconds(publisher.pid) - used
        seen = parts[1].hear_line("received", 3600) if heard else {}
        grown = [resident(part.pid, "VmHWM") - size for part, size in zip(parts, before, strict=True)]
    row(
        f"{topics:,}",
        "one" if heard else "none",
        f"{grown[0] / MIB:.0f} MiB",
        f"{grown[1] / MIB:.0f} MiB" if heard else "",
        f"{used / topics * 1e6:.0f} us",
        f"{seen['received']:,}, {seen['missed']} missed" if heard else "",
    )
    if published != topics + 1 or (heard and seen["received"] != topics):
        raise SystemExit("topics: not every event was published and came")


def conduct(*, quick: bool) -> None:
    """Publish on very many topics, with nobody who listens and with somebody."""
    topics = 100_000 if quick else 1_000_000
    heading(
        "One event on each of many topics",
        "topics", "subscribers", "publisher's growth at most", "subscriber's", "publisher's processor time for one",
        "received",
    )  # fmt: skip
    _publish(topics, heard=False)
    _publish(topics, heard=True)
