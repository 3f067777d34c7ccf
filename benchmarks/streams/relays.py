"""One publisher, and so many nodes that they hand its events on to each other; then a process full of them is killed.

The process with the nodes that have forwarded most is stopped first, until others have had some events more: so it has
events in hand when it is killed, which those behind it miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any, Final

import trio

import iris
from benchmarks.streams.fanout import NUMBER, Checked
from benchmarks.streams.nodes import CLUSTER, LOOPBACK, tcp_address, wait_told
from benchmarks.streams.processes import PATIENCE, Part, open_run, say
from benchmarks.streams.table import heading, row

_TOPIC: Final = "streams.relayed"
_FIRST: Final = b"first"
"""Events before the numbered ones, until everybody is known to get them."""

_BURST: Final = 20
_PAUSE: Final = 0.025
"""Seconds between two bursts: few enough signatures that two cores keep up with 49 nodes."""

_STOPPED: Final = 2 * _BURST
"""Events between stopping and killing, of those who get most."""

_SETTLED: Final = 400
"""Events after which the tree from before a kill has been left."""

_WATCHED: Final = 100
"""Messages that are forwarded from then on: there is another tree."""


def _config(task: Mapping[str, Any]) -> iris.Config:
    return iris.Config(relay_above=task["above"], relay_fan_out=task["fan_out"])


async def _readers(task: Mapping[str, Any]) -> None:
    """Several nodes; answer each line with what they have received, and have forwarded to others."""
    checks: list[Checked] = []
    nodes: list[iris.Node] = []

    async def read(events: iris.Subscription, checked: Checked) -> None:
        while not checked.take([event for event in await events.receive_batch() if event.payload != _FIRST]):
            pass

    async with AsyncExitStack() as stack:
        for _ in range(task["nodes"]):
            seeds = [*task["seeds"], *map(tcp_address, nodes[:1])]
            opening = iris.open_node(CLUSTER, listen=LOOPBACK, seeds=seeds, config=_config(task))
            node = await stack.enter_async_context(opening)
            await stack.enter_async_context(node.join(CLUSTER, iris.Service(CLUSTER)))
            nodes.append(node)
        say(ready=tcp_address(nodes[0]))
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as reading:
                for node in nodes:
                    checks.append(Checked())
                    reading.start_soon(read, await stack.enter_async_context(node.subscribe(_TOPIC)), checks[-1])
                say(subscribed=True)
                nursery.start_soon(_answer, nodes, checks)
            nursery.cancel_scope.cancel()
        say(done=[[one.received, one.missed, one.unexplained] for one in checks])
        await trio.sleep_forever()


async def _answer(nodes: list[iris.Node], checks: list[Checked]) -> None:
    while True:
        await wait_told()
        relayed = sum(node.statistics().relayed.sent for node in nodes)
        received = [one.received for one in checks]
        say(relayed=relayed, received=min(received), most=max(received))


async def _publisher(task: Mapping[str, Any]) -> None:
    async with iris.open_node(listen=LOOPBACK, seeds=task["seeds"], config=_config(task)) as node:
        await node.wait_for(CLUSTER, members=task["nodes"], timeout=60)
        reached = -1
        while reached < task["nodes"]:
            before = node.statistics().events.sent
            await node.publish(_TOPIC, _FIRST)
            reached = node.statistics().events.sent - before
            await trio.sleep(_PAUSE)
        say(ready=True)
        published = 0
        stopped = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_wait_stopped, stopped)
            while not stopped.is_set():
                for number in range(published, published + _BURST):
                    await node.publish(_TOPIC, NUMBER.pack(number))
                published += _BURST
                await trio.sleep(_PAUSE)
        await node.publish(_TOPIC, b"end")
        say(published=published)
        await trio.sleep_forever()


async def _wait_stopped(stopped: trio.Event) -> None:
    await wait_told()
    stopped.set()


ROLES = {"readers": _readers, "publisher": _publisher}


def conduct(*, quick: bool) -> None:
    """Publish over a tree, kill a part of it, and look at everybody else."""
    processes, each, above, fan_out = (3, 5, 8, 2) if quick else (4, 12, 32, 10)
    heading(
        f"{processes * each} nodes in {processes} processes hand on events; the process that hands on most is killed",
        "nodes that go on",
        "published",
        "received by each",
        "announced as missed by each",
        "unexplained gaps",
        "messages handed on: by the killed, by the others before and after",
    )
    with open_run() as run:
        readers: list[Part] = []
        seeds: list[str] = []
        for _ in range(processes):
            readers.append(run.start("relays", "readers", nodes=each, seeds=seeds, above=above, fan_out=fan_out))
            seeds = [*seeds, readers[-1].hear("ready")][:1]
        for reader in readers:
            reader.hear("subscribed")
        publisher = run.start("relays", "publisher", nodes=processes * each, seeds=seeds, above=above, fan_out=fan_out)
        publisher.hear("ready")
        relayed = _wait_relayed(readers)
        victim = max(readers, key=lambda reader: relayed[reader])
        others = [reader for reader in readers if reader is not victim]
        most = _most(others)
        victim.stop()
        _wait_more(others, most + _STOPPED)
        victim.kill()
        after = _wait_relayed(others)
        publisher.tell()
        published = publisher.hear("published")
        results = [one for reader in others for one in reader.hear("done")]
    received, missed, unexplained = zip(*results, strict=True)
    row(
        str(len(results)),
        f"{published:,}",
        f"{min(received):,} - {max(received):,}",
        f"{min(missed)} - {max(missed)}",
        str(sum(unexplained)),
        f"{relayed[victim]:,}; {sum(relayed[one] for one in others):,} and {sum(after.values()):,}",
    )
    if any(unexplained) or any(one[0] + one[1] != published for one in results):
        raise SystemExit(f"relays: events are not accounted for: {results}")


def _most(readers: list[Part]) -> int:
    for reader in readers:
        reader.tell()
    return max(int(reader.hear("most")) for reader in readers)


def _wait_more(readers: list[Part], count: int) -> None:
    """Wait until some of these have had so many events."""
    while _most(readers) < count:
        trio.run(trio.sleep, 0.02)


def _wait_relayed(readers: list[Part]) -> dict[Part, int]:
    """Wait until there is a tree, of which these processes are a part; return how many messages each has forwarded."""
    first: int | None = None
    settled: int | None = None
    deadline = monotonic() + PATIENCE
    while monotonic() < deadline:
        trio.run(trio.sleep, 0.1)
        for reader in readers:
            reader.tell()
        answers = [reader.hear_line("relayed") for reader in readers]
        relayed = sum(answer["relayed"] for answer in answers)
        received = min(answer["received"] for answer in answers)
        if first is None:
            first = received
        elif settled is not None and relayed >= settled + _WATCHED:
            return {reader: answer["relayed"] for reader, answer in zip(readers, answers, strict=True)}
        elif settled is None and received >= first + _SETTLED:
            settled = relayed
    raise SystemExit("relays: in all that time there is no tree")
