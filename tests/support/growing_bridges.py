"""A bridge that grows while its members crash, simulated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import trio

import iris
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.growth.grow import grow
from iris.testing import World
from iris.testing.faults import Crash, Faults, Schedule
from iris.testing.running import run_once

CRASHES = Faults(kinds=(Crash,), pause=3.0, lasting=(0.05, 3.0), spared=("publisher", "reader"))
KEYS = 23


async def be_member(world: World, shard: int, of: int) -> None:
    """A member with one shard."""
    async with (
        iris.open_node("bridge") as node,
        open_bridge(node, topics=["t"], directory=world.directory() / "log", shards=[shard], of=of),
    ):
        await trio.sleep_forever()


async def publish(world: World, published: list[int], grown: trio.Event) -> None:
    """Publish confirmed events of some keys, numbered, until the bridge has grown and nothing fails any more."""
    number = 0
    async with iris.open_node("publisher") as node, node.confirming(timeout=600) as events:
        await node.wait_for("bridge", timeout=60)
        while world.is_faulty or not grown.is_set():
            await events.publish("t", b"%d" % number, key=f"k{number % KEYS}")
            number += 1
            await trio.sleep(0.02)
    published.append(number)


async def consume(world: World, received: list[tuple[str, int]]) -> None:
    """Read everything as a group, from before or behind the growth on."""
    await trio.sleep(world.random.choice([0.0, 8.0]))
    async with iris.open_node("reader") as node, node.bridge().consume("t", group="g", start="earliest") as batches:
        async for batch in batches:
            async with batch:
                received += [(str(event.key), int(event.payload)) for event in batch]


async def read_all(client: BridgeClient) -> dict[int, list[tuple[str, int]]]:
    """Return key and number of every event, by shard in order."""
    found: dict[int, list[tuple[str, int]]] = {}
    for shard in await client.shards():
        rows = found[shard.number] = []
        if shard.earliest < shard.next:
            async for chunks in client.read(shard.address, shard.id, shard.earliest, shard.next):
                for chunk in chunks:
                    columns = decode_events(chunk.data).to_pydict()
                    rows += [(_text(k), int(v)) for k, v in zip(columns["key"], columns["value"], strict=True)]
    return found


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key


def check_once_and_in_order(events: Sequence[tuple[str, int]], count: int) -> None:
    """Compare events with those that were published."""
    numbers = sorted(number for _, number in events)
    assert numbers == list(range(count)), f"{count} were published, {len(numbers)} came, {len(set(numbers))} different"
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in events:
        by_key[key].append(number)
    for key, own in by_key.items():
        assert own == sorted(own), f"{key}: {own}"


async def grow_under_load(world: World) -> None:
    """Grow from two shards to four, and then to five, while members crash."""
    published: list[int] = []
    received: list[tuple[str, int]] = []
    grown = trio.Event()
    for shard in (0, 1):
        world.start(f"m{shard}", be_member, world, shard, 2, restart=(iris.IrisError,))
    world.start("publisher", publish, world, published, grown)
    world.start("reader", consume, world, received)
    async with iris.open_node("bridge") as node:
        client = BridgeClient(node, "bridge", patience=20)
        await trio.sleep(world.random.uniform(1, 5))
        for of in (4, 5):
            for shard in range(2 if of == 4 else 4, of):
                world.start(f"m{shard}", be_member, world, shard, of, restart=(iris.IrisError,))
            while True:
                try:
                    await grow(client, of)
                except iris.IrisError as error:
                    world.note(f"not yet: {error}")
                    await trio.sleep(0.2)
                else:
                    break
            await trio.sleep(world.random.uniform(0, 5))
        grown.set()
        await world.wait_healed()
        while not published:  # noqa: ASYNC110 -- a list
            await trio.sleep(0.1)
        found = await read_all(client)
        assert sorted(found) == [0, 1, 2, 3, 4]
        assert all(found.values())
        # Shards of a later generation come after those of earlier ones.
        check_once_and_in_order([event for shard in sorted(found) for event in found[shard]], published[0])
        with trio.move_on_after(120):
            while len(received) < published[0]:  # noqa: ASYNC110 -- a list
                await trio.sleep(0.1)
        check_once_and_in_order(received, published[0])


def run(seed: int, seconds: float = 20.0) -> None:
    """Run it with the crashes of a seed."""
    done = run_once(grow_under_load, Schedule(seed=seed, seconds=seconds), CRASHES)
    if done.error is not None:
        raise AssertionError(f"seed {seed}") from done.error
