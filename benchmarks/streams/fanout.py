"""One publisher and some subscribers, each a process: order, gaps, and one that is stopped."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final, final

import trio

import iris
from benchmarks.streams.nodes import LOOPBACK, tcp_address, wait_told
from benchmarks.streams.processes import Part, Run, open_run, processor_seconds, resident, say
from benchmarks.streams.table import heading, row

TOPIC: Final = "streams.events"
NUMBER: Final = struct.Struct("<Q")
_SUBSCRIBERS: Final = 4
_MORE_THAN_MAY_WAIT: Final = 200_000
"""Events: 100 bytes each, where 16 MiB may wait on a link."""


@final
class Checked:
    """Events that one subscriber has received.

    Attributes:
        missed: events that were announced as lost.
        unexplained: events that came at another place than their number and ``missed`` say.
    """

    def __init__(self) -> None:
        self.received = self.missed = self.unexplained = 0
        self._next = 0

    def take(self, batch: list[iris.Event]) -> bool:
        """Check events; return whether the last one of all was among them."""
        following = self._next
        for index, event in enumerate(batch):
            payload = event.payload
            if len(payload) < NUMBER.size:
                self.received += index
                self.missed += event.missed
                return True
            (number,) = NUMBER.unpack_from(payload)
            missed = event.missed
            if number != following + missed:
                self.unexplained += 1
            self.missed += missed
            following = number + 1
        self.received += len(batch)
        self._next = following
        return False


async def _subscriber(task: Mapping[str, Any]) -> None:
    checked = Checked()
    async with iris.open_node(listen=LOOPBACK) as node, node.subscribe(TOPIC, overflow=task["overflow"]) as events:
        say(ready=tcp_address(node))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell_count, checked)
            while not checked.take(await events.receive_batch()):
                pass
            nursery.cancel_scope.cancel()
        counted = events.statistics()
        say(
            done={
                "received": checked.received,
                "missed": checked.missed,
                "unexplained": checked.unexplained,
                "dropped": counted.dropped,
                "lost before": counted.missed,
            }
        )
        await trio.sleep_forever()


async def _tell_count(checked: Checked) -> None:
    """Answer each line with how many events were received."""
    while True:
        await wait_told()
        say(count=checked.received)


async def _publisher(task: Mapping[str, Any]) -> None:
    payload = bytes(task["size"] - NUMBER.size)
    async with iris.open_node(listen=LOOPBACK, seeds=task["seeds"]) as node:
        say(ready=True)
        await wait_told()
        began = perf_counter()
        stopped = trio.Event()
        published = 0
        async with trio.open_nursery() as nursery:
            if task["count"] is None:
                nursery.start_soon(_wait_stopped, stopped)
            while published < task["count"] if task["count"] is not None else not stopped.is_set():
                for number in range(published, published + 1000):
                    await node.publish(TOPIC, NUMBER.pack(number) + payload)
                published += 1000
            nursery.cancel_scope.cancel()
        seconds = perf_counter() - began
        while any(link.bytes_waiting for link in node.statistics().links.values()):  # noqa: ASYNC110 -- there is no event
            await trio.sleep(0.05)  # the mark must find room, also where nobody slows a publisher
        await node.publish(TOPIC, b"end")
        say(published=published, seconds=seconds, lost=dict(node.statistics().events.lost))
        await trio.sleep_forever()


async def _wait_stopped(stopped: trio.Event) -> None:
    await wait_told()
    stopped.set()


ROLES = {"subscriber": _subscriber, "publisher": _publisher}


def _start(run: Run, *, overflow: str, count: int | None, size: int = 100) -> tuple[Part, list[Part]]:
    subscribers = [run.start("fanout", "subscriber", overflow=overflow) for _ in range(_SUBSCRIBERS)]
    seeds = [subscriber.hear("ready") for subscriber in subscribers]
    publisher = run.start("fanout", "publisher", seeds=seeds, count=count, size=size)
    publisher.hear("ready")
    return publisher, subscribers


def conduct_fifo(*, quick: bool) -> None:
    """Publish many events to four processes and look at each of them."""
    count = 5_000 if quick else 10_000_000
    heading(
        f"{count:,} events of 100 bytes, 1 publisher -> {_SUBSCRIBERS} subscriber processes",
        "overflow",
        "received by each",
        "announced as missed",
        "unexplained gaps",
        "events/s to each",
        "publisher, most memory",
        "not taken by its links",
    )
    for overflow in ("wait", "drop_oldest"):
        with open_run() as run:
            publisher, subscribers = _start(run, overflow=overflow, count=count)
            publisher.tell()
            results = [subscriber.hear("done", 3600) for subscriber in subscribers]
            said = publisher.hear_line("published")
            row(
                overflow,
                ", ".join(f"{one['received']:,}" for one in results),
                ", ".join(f"{one['missed']:,}" for one in results),
                str(sum(one["unexplained"] for one in results)),
                f"{min(one['received'] for one in results) / said['seconds']:,.0f}",
                f"{resident(publisher.pid, 'VmHWM') / 2**20:.0f} MiB",
                ", ".join(f"{reason}: {count:,}" for reason, count in said["lost"].items()) or "0",
            )
            short = [one for one in results if one["received"] + one["missed"] != count]
            if short or any(one["unexplained"] for one in results):
                raise SystemExit(f"fifo: events are not accounted for: {results}")


def conduct_stopped(*, quick: bool) -> None:
    """Stop one of four subscribers by SIGSTOP for a while, again and again, and look at the others."""
    seconds, rounds = (1.5, 1) if quick else (6.0, 10)
    heading(
        f"One of {_SUBSCRIBERS} subscribers is stopped (SIGSTOP) for {seconds:g} s, {rounds} times",
        "round",
        "events/s to the others, all running",
        "while one is stopped",
        "change",
        "publisher's work for an event",
        "publisher's memory before, after",
    )
    with open_run() as run:
        publisher, subscribers = _start(run, overflow="drop_oldest", count=None)
        others, victim = subscribers[:-1], subscribers[-1]
        publisher.tell()
        _rate(others, 1.0, publisher)
        for number in range(1, rounds + 1):
            before, work_before = _rate(others, seconds, publisher)
            memory = resident(publisher.pid)
            published = _count(others[0])
            victim.stop()
            during, work_during = _rate(others, seconds, publisher)
            while _count(others[0]) < published + _MORE_THAN_MAY_WAIT:  # however slow the machine is
                trio.run(trio.sleep, 0.1)
            after = resident(publisher.pid)
            victim.go_on()
            _wait_back(victim)
            row(
                str(number),
                f"{before:,.0f}",
                f"{during:,.0f}",
                f"{(during / before - 1) * 100:+.0f} %",
                f"{work_before:.2f}, {work_during:.2f} us",
                f"{memory / 2**20:.0f}, {after / 2**20:.0f} MiB",
            )
        publisher.tell()
        published = publisher.hear("published")
        results = [one.hear("done", 300) for one in subscribers]
    stopped = results[-1]
    unexplained = sum(one["unexplained"] for one in results)
    print(
        f"\npublished {published:,}; the stopped one received {stopped['received']:,} and was told of "
        f"{stopped['missed']:,} missed; unexplained gaps in all: {unexplained}"
    )
    if unexplained or any(one["received"] + one["missed"] != published for one in results):
        raise SystemExit(f"stopped: events are not accounted for: {results}")


def _rate(subscribers: list[Part], seconds: float, publisher: Part) -> tuple[float, float]:
    """Return the events per second that the slowest of these gets, and the publisher's processor time for each, in us.

    The second figure does not change with what else the machine does.
    """
    work = processor_seconds(publisher.pid)
    before = [(perf_counter(), _count(one)) for one in subscribers]
    run_end = perf_counter() + seconds
    while (left := run_end - perf_counter()) > 0:
        trio.run(trio.sleep, left)
    rates: list[float] = []
    counts: list[int] = []
    for one, (then, count) in zip(subscribers, before, strict=True):
        counts.append(_count(one) - count)
        rates.append(counts[-1] / (perf_counter() - then))
    return min(rates), (processor_seconds(publisher.pid) - work) / max(1, *counts) * 1e6


def _wait_back(victim: Part) -> None:
    """Wait until one that was stopped gets new events, not only those that it had."""
    began = perf_counter()
    count = _count(victim)
    quiet = 0
    while perf_counter() - began < 60:
        trio.run(trio.sleep, 0.1)
        before, count = count, _count(victim)
        # It is cut off when it has worked off what it had; a second of new events shows that it is back.
        quiet = quiet + 1 if count > before else 0
        if quiet >= 10:
            return
    raise SystemExit("stopped: the stopped one got no events for a minute")


def _count(subscriber: Part) -> int:
    subscriber.tell()
    count: int = subscriber.hear("count")
    return count
