"""Payloads read as the columns of a schema, with more and more of them that do not fit.

::

    python -m benchmarks.bridge.bad_rows [ROWS] [--spark]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import msgspec
import pyarrow as pa
import trio
from pyspark.sql import DataFrame

import iris
from benchmarks.bridge.children import bridge_child, open_realm
from benchmarks.bridge.spark_rates import open_session
from iris.spark_bridge.datasource.payloads import typed_columns
from iris.spark_bridge.events.schema import HEADER_ENCODING, PACKED, SCHEMA

SHARES = (0.0, 0.0001, 0.01, 0.1, 1.0)
FIELDS = {
    "carrier": pa.string(),
    "flight": pa.int64(),
    "delay": pa.float64(),
    "origin": pa.string(),
    "at": pa.timestamp("us", tz="UTC"),
}


def make_payloads(rows: int, share: float, *, packed: bool) -> list[bytes]:
    """Return flights of seven fields; every so many do not fit."""
    every = round(1 / share) if share else rows + 1
    payloads: list[bytes] = []
    for row in range(rows):
        flight = make_flight(row, fits=(row + 1) % every != 0)
        payloads.append(msgspec.msgpack.encode(flight) if packed else json.dumps(flight).encode())
    return payloads


def make_flight(row: int, *, fits: bool) -> dict[str, object]:
    """Return a flight."""
    return {
        "carrier": "AA",
        "flight": row if fits else "x",
        "delay": row / 2,
        "origin": "JFK",
        "dest": "LAX",
        "at": "2013-01-01T10:00:00Z",
        "more": "x" * 20,
    }


def make_batch(rows: int, share: float, *, packed: bool) -> pa.RecordBatch:
    """Return a batch of the log."""
    payloads = make_payloads(rows, share, packed=packed)
    headers: list[object] = [[{"key": HEADER_ENCODING, "value": PACKED.encode()}] if packed else []] * rows
    given: dict[str, list[object]] = {"value": [*payloads], "headers": headers, "topic": ["flights"] * rows}
    columns = [
        pa.array(given[field.name], field.type) if field.name in given else pa.nulls(rows, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in SCHEMA]))


def measure(rows: int, share: float, *, packed: bool) -> tuple[float, int]:
    """Return the processor's microseconds for a row, best of five, and how many did not fit."""
    typed = typed_columns(
        pa.schema({**FIELDS, "_corrupt_record": pa.binary()}), corrupt="_corrupt_record", mode="PERMISSIVE"
    )
    batch = make_batch(rows, share, packed=packed)
    unfit = rows - typed.parse(batch).column(len(FIELDS)).null_count
    taken: list[float] = []
    for _ in range(5):
        began = time.process_time()
        typed.parse(batch)
        taken.append(time.process_time() - began)
    return min(taken) / rows * 1e6, unfit


async def _publish(cases: list[tuple[bool, float]], rows: int) -> None:
    """Publish the rows of each case, one after the other."""
    async with iris.open_node("publisher") as node:
        await node.wait_for("bridge", timeout=20)
        for packed, share in cases:
            every = round(1 / share) if share else rows + 1
            async with node.confirming(timeout=60) as events:
                for row in range(rows):
                    flight = make_flight(row, fits=(row + 1) % every != 0)
                    await events.publish("flights", flight if packed else json.dumps(flight).encode())


def measure_spark(rows: int) -> None:
    """Read each case through Spark, in turns, and print what a row takes."""
    cases = [(packed, share) for packed in (False, True) for share in (0.0, 0.01)]
    with open_realm() as directory:
        bridge = bridge_child(directory)
        bridge.start()
        try:
            trio.run(_publish, cases, rows)
            spark = open_session(directory)
            schema = "carrier STRING, flight BIGINT, delay DOUBLE, origin STRING, at TIMESTAMP, _corrupt_record BINARY"
            frames: list[DataFrame] = []
            for number in range(len(cases)):
                part = {
                    "startingOffsets": f'{{"0":{number * rows}}}',
                    "endingOffsets": f'{{"0":{(number + 1) * rows}}}',
                }
                frames.append(spark.read.format("iris").schema(schema).options(**part, minPartitions=2).load())
            taken: list[list[float]] = [[] for _ in cases]
            for _ in range(7):
                for number, frame in enumerate(frames):
                    began = time.perf_counter()
                    frame.write.format("noop").mode("overwrite").save()
                    taken[number].append(time.perf_counter() - began)
            found = [statistics.median(times[2:]) for times in taken]
            for number, (packed, share) in enumerate(cases):
                kind = "msgpack" if packed else "json"
                ratio = found[number] / found[number - number % 2]
                unfit = frames[number].where("_corrupt_record IS NOT NULL").count()
                each = found[number] / rows * 1e6
                print(f"Spark, {kind:8} {unfit:6} of {rows} ({share:.0%}): {each:.2f} us/row, {ratio:.2f}x")
            spark.stop()
        finally:
            bridge.end()


def main() -> None:
    """Print a line for each share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=20_000)
    parser.add_argument("--spark", action="store_true", help="through Spark, too")
    given = parser.parse_args()
    rows = given.rows
    for packed in (False, True):
        whole = 0.0
        for share in SHARES:
            taken, unfit = measure(rows, share, packed=packed)
            whole = whole or taken
            kind = "msgpack" if packed else "json"
            print(f"{kind:8} {unfit:6} of {rows} do not fit: {taken:6.2f} us/row, {taken / whole:5.2f}x")
    if given.spark:
        measure_spark(10 * rows)


if __name__ == "__main__":
    main()
