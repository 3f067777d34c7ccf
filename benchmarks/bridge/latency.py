"""Latency of an event from its publisher through Spark to a sink, and of Spark alone for the same.

A process for each kind of session, because Java takes its options at its start: ``python -m benchmarks.bridge latency``
for one with ``latency=True``, with ``--default`` for one without.  ``--sink`` measures only the way to our own sink and
a subscriber behind it, in a third of the time.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, final

import trio
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

import iris
from benchmarks.bridge.rates import filled_bridge, row
from benchmarks.bridge.spark_rates import open_session, shares, times
from iris.spark_bridge import foreach_batch

_WARM: Final = 300
"""Events before those that count: Java interprets what is new to it, and compiles it while the first ones come."""

_COUNT: Final = 200
_QUICK: Final = 0.1
_EVERY: Final = 0.2
_LONGEST: Final = 120.0
_PHASES: Final = ("walCommit", "queryPlanning", "addBatch", "commitOffsets")
"""Phases of a batch in Spark's reports that delay its events; only the last comes after the sink."""


@final
class Ages:
    """A ``foreachBatch`` that notes how old each event is when its batch is there."""

    def __init__(self) -> None:
        self.found: list[float] = []
        self._changed = threading.Condition()

    def take(self, batch: DataFrame, number: int) -> None:  # noqa: ARG002 -- Spark passes it
        """Take a batch."""
        sent = [float(event.value) for event in batch.select("value").collect()]
        now = time.perf_counter()
        with self._changed:
            self.found += [(now - began) * 1000 for began in sent]
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Wait until so many have come, or so long that they do not come any more."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.found) >= count, _LONGEST)


def measure_latency(directory: Path, *, latency: bool, sink: bool) -> None:
    """Measure the ways of an event in one kind of session, each after Spark alone has warmed Java up; or the last."""
    kind = "latency=True" if latency else "default"
    target = "p50 <= 80 ms" if latency else ""
    spark = open_session(directory, latency=latency)
    try:
        log = spark.readStream.format("iris").options(subscribe="there", startingOffsets="latest")
        inline = log.option("inlineRows", 256).load()
        if not sink:
            floor = LineServer()
            lines = spark.readStream.format("socket").options(host="127.0.0.1", port=floor.port).load()
            _report(f"Spark alone ({kind}): a line by TCP to foreachBatch", lines, directory, floor.send)
            _report(f"event to Spark to foreachBatch ({kind})", log.load(), directory, _publish)
            _report(f"the same ({kind}), inlineRows=256", inline, directory, _publish, target)
        what = f"event to Spark ({kind}), inlineRows=256, to our sink and a subscriber"
        values = inline.select("value")
        _to_subscriber(what, values.writeStream.format("iris").option("topic", "back"), directory)
        by_driver = values.writeStream.foreachBatch(foreach_batch("back", inline_rows=256, topic="back"))
        _to_subscriber(f"{what}, by foreach_batch(inline_rows=256)", by_driver, directory, target)
    finally:
        spark.stop()


def _report(what: str, frame: DataFrame, directory: Path, send: Callable[[int, float], None], target: str = "") -> None:
    ages = Ages()
    frame = frame.selectExpr("CAST(value AS STRING) AS value")
    place = str(directory / f"checkpoint-{time.monotonic_ns()}")
    query = frame.writeStream.foreachBatch(ages.take).option("checkpointLocation", place).start()
    try:
        query.processAllAvailable()  # it has begun, behind what is there
        send(_WARM, _QUICK)
        ages.wait(_WARM)
        before = times()
        send(_COUNT, _EVERY)
        ages.wait(_WARM + _COUNT)
        used = shares(before, _COUNT, "ms")
        row(f"{what}, p50 and p99", _quantiles(ages.found[_WARM:]), target)
        row("processor time for each of these events", used)
        row("Spark's account of their batches, medians", _account(query.recentProgress))
    finally:
        query.stop()


def _account(progress: Sequence[Any]) -> str:
    batches = [batch for batch in progress[-_COUNT:] if batch["numInputRows"]]
    medians = {name: statistics.median(batch["durationMs"].get(name, 0) for batch in batches) for name in _PHASES}
    return ", ".join(f"{name} {value:.0f} ms" for name, value in medians.items())


def _quantiles(ages: list[float]) -> str:
    if len(ages) < _COUNT:
        return f"only {len(ages)} of {_COUNT} came"
    return f"{statistics.median(ages):.0f} and {statistics.quantiles(ages, n=100)[98]:.0f} ms"


@final
class LineServer:
    """A server of the lines that Spark's own source reads."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._connection: socket.socket | None = None

    def send(self, count: int, every: float) -> None:
        """Send so many lines, each with the time at which it is sent."""
        if self._connection is None:
            self._connection, _ = self._server.accept()
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            self._connection.sendall(b"%.6f\n" % time.perf_counter())
            time.sleep(every)  # the time between two events


def _publish(count: int, every: float) -> None:
    async def publish() -> None:
        async with iris.open_node("observer") as node:
            await node.wait_for("bridge", timeout=60)
            for _ in range(count):
                await node.publish("there", b"%.6f" % time.perf_counter(), confirm=True, timeout=60)
                await trio.sleep(every)

    trio.run(publish)


def _to_subscriber(what: str, writer: DataStreamWriter, directory: Path, target: str = "") -> None:
    place = str(directory / f"checkpoint-{time.monotonic_ns()}")
    back = writer.option("checkpointLocation", place).start()
    try:
        back.processAllAvailable()
        ages, used = trio.run(_send_and_hear)
        row(f"{what}, p50 and p99", _quantiles(ages), target)
        row("processor time for each of these events", used)
        row("Spark's account of their batches, medians", _account(back.recentProgress))
    finally:
        back.stop()


async def _send_and_hear() -> tuple[list[float], str]:
    """Publish an event now and then; return how old each is when it comes back from Spark, in milliseconds.

    And the processor time that each took.
    """
    ages: list[float] = []
    before: dict[int, float] = {}
    wanted = _WARM + _COUNT
    async with (
        iris.open_node("observer") as node,
        node.subscribe("back") as events,
        trio.open_nursery() as nursery,
    ):
        await node.wait_for("bridge", timeout=60)

        async def hear() -> None:
            async for event in events:
                ages.append((time.perf_counter() - float(event.payload)) * 1000)
                if len(ages) == wanted:
                    nursery.cancel_scope.cancel()

        nursery.start_soon(hear)
        for number in range(wanted):
            if number == _WARM:
                before = times()
            await node.publish("there", b"%.6f" % time.perf_counter(), confirm=True, timeout=60)
            await trio.sleep(_QUICK if number < _WARM else _EVERY)
        nursery.cancel_scope.deadline = trio.current_time() + _LONGEST
    return ages[_WARM:], shares(before, _COUNT, "ms")


def main(*, latency: bool, sink: bool) -> None:
    """Measure one kind of session, with a bridge of its own."""
    with filled_bridge(1000) as (directory, _):
        measure_latency(directory, latency=latency, sink=sink)
