"""Memory of topics and patterns: a publisher with a million of them, and a member with as many as it may have."""

from __future__ import annotations

import gc
import itertools
import string
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, Final

import iris
from benchmarks.streams.nodes import LOOPBACK, tcp_address, wait_told
from benchmarks.streams.processes import open_run, processor_seconds, resident, say
from benchmarks.streams.table import heading, row
from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.pubsub.interest.table import InterestTable

MIB: Final = 2**20


NODE: Final = NodeId("a" * 32)


def _long(count: int) -> Iterator[str]:
    """Yield different patterns of so many tokens and 250 bytes."""
    token = "a" * ((250 - 5) // (count - 1) - 1)
    for number in itertools.count():
        yield ".".join([f"{number:05x}", *itertools.repeat(token, count - 1)])


def _short() -> Iterator[str]:
    """Yield the shortest patterns there are."""
    for size in itertools.count(1):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=size))


def _stars() -> Iterator[str]:
    """Yield patterns over ``*`` and one token, which all match one topic."""
    yield from map(".".join, itertools.product("*a", repeat=17))


PATTERNS: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "of 125 tokens": lambda: _long(125),
    "of 32 tokens": lambda: _long(32),
    "of 1 token": _short,
    "over `{*, a}`, of 17 tokens": _stars,
}


async def _table(task: Mapping[str, Any]) -> None:
    """Take patterns of one member until so many bytes of them have come, or are refused."""
    table = InterestTable()
    decoder = wire.BatchDecoder(kinds.Interest)
    gc.collect()
    before = resident()
    size = taken = 0
    refused = ""
    patterns = PATTERNS[task["kind"]]()
    for version in itertools.count(1):
        more = tuple(kinds.InterestEntry(pattern, None, False, False, ()) for pattern in itertools.islice(patterns, 64))
        if not more or size >= task["bytes"]:
            break
        data = wire.encode_batch([kinds.Interest(version, False, more, ())])
        size += len(data)
        (message,) = decoder.decode_untrusted(data)
        try:
            table.receive_untrusted(NODE, message)
        except RemoteProtocolError as error:
            refused = str(error).removeprefix(f"node {NODE} ")
            break
        taken += len(more)
    topics = [".".join("a" * 17).replace("a", token, 1) for token in itertools.islice(_short(), 1000)]
    began = perf_counter()
    found = max(len(table.match(topic)) for topic in topics)
    spent = (perf_counter() - began) / len(topics)
    say(size=size, taken=taken, grown=resident(field="VmHWM") - before, found=found, spent=spent, refused=refused)


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


ROLES = {"publisher": _publisher, "subscriber": _subscriber, "table": _table}


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
    """Publish on very many topics, without a subscriber and with one."""
    topics = 100_000 if quick else 1_000_000
    heading(
        "One event on each of many topics",
        "topics", "subscribers", "publisher's growth at most", "subscriber's", "publisher's processor time for one",
        "received",
    )  # fmt: skip
    _publish(topics, heard=False)
    _publish(topics, heard=True)
    heading(
        "What one member's patterns take at a publisher",
        "patterns", "told", "taken", "publisher's growth at most", "a match that is not remembered", "finds", "refused",
    )  # fmt: skip
    for kind in PATTERNS:
        with open_run() as run:
            table = run.start("topics", "table", kind=kind, bytes=100_000 if quick else 2_150_000)
            said = table.hear_line("taken", 600)
        row(
            kind,
            f"{said['size'] / 1e6:.2f} MB",
            f"{said['taken']:,}",
            f"{said['grown'] / MIB:.1f} MiB",
            f"{said['spent'] * 1e6:.0f} us",
            str(said["found"]),
            said["refused"] or "none",
        )
