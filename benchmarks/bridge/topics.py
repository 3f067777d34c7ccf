"""Topics inside the log: what 10,000 of them cost beside one, and a query for those that it does not want."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import trio

import iris
from benchmarks.bridge.children import bridge_child, open_realm
from benchmarks.bridge.rates import SIZE, payload, processor_time, row
from iris.kernel.names import NodeId
from iris.kernel.wire.kinds import Events
from iris.patterns.messages import Sender
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.log import Store, TopicFilter, open_store

MANY: Final = 10_000
_ROUNDS: Final = 5
_APPENDED: Final = 200_000
_GROUP: Final = 4096
"""Events of one append: what a member takes at once."""

_KEYS: Final = 10_000
_HEARD: Final = 20


def measure_topics(events: int, elsewhere: int) -> None:
    """Measure all of it.

    Args:
        events: that are published in each round.
        elsewhere: that arrive while a query waits for another topic.
    """
    one, many = ["rates.s0"], [f"rates.s{number}" for number in range(MANY)]
    names = {"one topic": one, f"{MANY:,} topics": many}
    _compare("appending to the log", {name: partial(_append, topics) for name, topics in names.items()})
    with open_realm() as directory:
        bridge = bridge_child(directory)
        bridge.start()
        try:
            kinds = {name: partial(_publish, topics, events, bridge.pid) for name, topics in names.items()}
            _compare("publishing with confirmation, the bridge's part", kinds)
        finally:
            bridge.end()
    _read_one_of_many(many)
    _silent(elsewhere)


def _compare(what: str, kinds: Mapping[str, Callable[[], tuple[float, float]]]) -> None:
    """Measure in turns; print events per second and processor time for each event, and how they compare."""
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(_ROUNDS):
        for name, measure in kinds.items():
            rounds[name].append(measure())
    rates, costs = (
        {name: statistics.median(one[at] for one in found) for name, found in rounds.items()} for at in (0, 1)
    )
    first, second = kinds
    for name in kinds:
        row(f"{what}, {name}", f"{rates[name]:,.0f} events/s, {costs[name] * 1e6:.1f} us of processor time for each")
    row(
        f"{what}, {second} beside {first}",
        f"{rates[first] / rates[second]:.2f}x the time, {costs[second] / costs[first]:.2f}x the processor time",
        "<= 1.5x",
    )


def _chosen(topics: Sequence[str]) -> Iterator[str]:
    """Yield topics at unlike rates: the n-th one comes a n-th as often as the first."""
    chance = Random(1)
    weights = [1 / (place + 1) for place in range(len(topics))]
    while True:
        yield from chance.choices(topics, weights, k=_GROUP)


def _runs(topics: Sequence[str], count: int) -> Iterator[list[EventRun]]:
    """Yield groups of events as they arrive.  Each has a key of its own, so that each is a run, of whatever topic."""
    sender, data = Sender("publisher", NodeId("ab" * 16)), os.urandom(SIZE)
    numbers: dict[str, int] = {}
    chosen = _chosen(topics)
    for begin in range(1, count, _GROUP):
        runs: list[EventRun] = []
        for number, topic in enumerate(islice(chosen, _GROUP), begin):
            first = numbers[topic] = numbers.get(topic, 0) + 1
            events = Events(topic, first, number, None, None, f"k{number % _KEYS}", (data,), ())
            runs.append(EventRun(sender, events, {}, SIZE, plain=True))
        yield runs


def _append(topics: Sequence[str]) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="ib-") as name:
        store = open_store(Path(name), shards=[0], entropy=os.urandom)
        seconds = work = 0.0
        count = 0
        for now, runs in enumerate(_runs(topics, _APPENDED)):
            began, worked = time.perf_counter(), time.process_time()
            count += store.append({0: runs}, now=now).count
            seconds += time.perf_counter() - began
            work += time.process_time() - worked
        store.close()
    return count / seconds, work / count


def _publish(topics: Sequence[str], events: int, bridge: int) -> tuple[float, float]:
    async def publish() -> float:
        async with iris.open_node("publisher") as node:
            await node.wait_for("bridge", timeout=60)
            began = time.perf_counter()
            async with node.confirming(timeout=120) as confirmed:
                for number, topic in enumerate(islice(_chosen(topics), events)):
                    await confirmed.publish(topic, payload(number), key=f"k{number % _KEYS}")
            return events / (time.perf_counter() - began)

    worked = processor_time(bridge)
    rate = trio.run(publish)
    return rate, (processor_time(bridge) - worked) / events


def _read_one_of_many(topics: Sequence[str]) -> None:
    """Measure looking for, and reading, topics of a log of many."""
    with tempfile.TemporaryDirectory(prefix="ib-") as name:
        store = open_store(Path(name), shards=[0], entropy=os.urandom)
        for now, runs in enumerate(_runs(topics, _APPENDED)):
            store.append({0: runs}, now=now)
        for what, wanted in (
            ("the most frequent topic", [topics[0]]),
            ("a rare topic", [topics[-1]]),
            ("a topic that is not there", ["silent"]),
            ("all topics by a pattern", ["rates.*"]),
        ):
            looked, (took, sent) = _look(store, wanted), _read(store, wanted)
            row(
                f"of {_APPENDED:,} events of {MANY:,} topics, {what}",
                f"{looked * 1e3:.1f} ms to look for it, {took * 1e3:.0f} ms to read it: {sent / 2**20:.1f} MiB",
            )
        store.close()


def _look(store: Store, topics: Sequence[str]) -> float:
    began = time.perf_counter()
    store.look(0, 0, TopicFilter(topics), limit=10**9)
    return time.perf_counter() - began


def _read(store: Store, topics: Sequence[str]) -> tuple[float, int]:
    (state,) = store.shards()
    began = time.perf_counter()
    at = sent = 0
    wanted = TopicFilter(topics)
    while at < state.next:
        chunks = store.read(0, state.epoch, at, state.next, max_bytes=2**20, wanted=wanted)
        sent += sum(len(chunk.frame) for chunk in chunks)
        at = chunks[-1].end
    return time.perf_counter() - began, sent


def _silent(elsewhere: int) -> None:
    """Count the micro-batches of a query that wants a topic on which nothing comes, while events go elsewhere."""
    from benchmarks.bridge.spark_rates import open_session, shares, times

    with open_realm() as directory:
        bridge = bridge_child(directory)
        bridge.start()
        spark = open_session(directory)
        try:
            frame = spark.readStream.format("iris").options(subscribe="silent.*").load()
            checkpoint = directory / "checkpoint"
            query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
            query.processAllAvailable()
            before, used = len(_batches(checkpoint)), times()
            trio.run(_publish_elsewhere, elsewhere)
            query.processAllAvailable()
            row(
                f"micro-batches of a query, {elsewhere:,} events elsewhere",
                f"{len(_batches(checkpoint)) - before}",
                "0",
            )
            row("processor time meanwhile, for each of these events", shares(used, elsewhere, "us"))
            trio.run(_publish_silent)
            query.processAllAvailable()
            heard = sum(progress["numInputRows"] for progress in query.recentProgress)
            row(
                "of 20 events on its topic then",
                f"{heard} in {len(_batches(checkpoint)) - before} batches",
                str(_HEARD),
            )
            query.stop()
        finally:
            spark.stop()
            bridge.end()


def _batches(checkpoint: Path) -> list[Path]:
    return [path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]


async def _publish_elsewhere(events: int) -> None:
    async with iris.open_node("publisher") as node:
        await node.wait_for("bridge", timeout=60)
        async with node.confirming(timeout=120) as confirmed:
            for number in range(events):
                await confirmed.publish(f"noise.{number // 1000 % 100}", payload(number))


async def _publish_silent() -> None:
    async with iris.open_node("publisher") as node:
        await node.wait_for("bridge", timeout=60)
        for number in range(_HEARD):
            await node.publish("silent.x", payload(number), confirm=True, timeout=60)
