"""``parse`` beside ``from_json`` alone, over the same events of the same source.

::

    python -m benchmarks.bridge.parse_rates [ROWS]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from functools import partial

import trio
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

import iris
from benchmarks.bridge.spark_rates import open_session
from iris import spark_bridge
from tests.support.processes import bridge_child, open_realm

FIELDS = "carrier STRING, flight BIGINT, delay DOUBLE, origin STRING, at TIMESTAMP"
ROUNDS = 7


async def publish(rows: int, *, packed: bool) -> None:
    """Publish flights of eight fields."""
    async with iris.open_node("publisher") as node:
        await node.wait_for("bridge", timeout=20)
        async with node.confirming(timeout=60) as events:
            for row in range(rows):
                flight = {"carrier": "AA", "flight": row, "delay": row / 2, "origin": "JFK", "dest": "LAX"}
                flight |= {"at": "2013-01-01T10:00:00Z", "price": row / 100, "more": "x" * 20}
                await events.publish("flights", flight if packed else json.dumps(flight).encode())


def from_json_alone(events: DataFrame, schema: str = FIELDS) -> DataFrame:
    """Return what users of Kafka's source write."""
    text = fn.col("value").cast("string")
    return events.select(fn.from_json(text, schema).alias("p"), "offset").select("p.*", "offset")


def main() -> None:
    """Print a line for each kind of payload."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with open_realm() as directory:
        bridge = bridge_child(directory)
        bridge.start()
        try:
            trio.run(partial(publish, rows, packed=False))
            trio.run(partial(publish, rows, packed=True))
            spark = open_session(directory)
            for number, kind in enumerate(("json", "msgpack")):
                part = {
                    f"{name}Offsets": json.dumps({"0": (number + at) * rows})
                    for at, name in enumerate(("starting", "ending"))
                }
                events = spark.read.format("iris").options(**part, minPartitions=2).load()
                names = [field.split()[0] for field in FIELDS.split(", ")]
                log = [name for name in events.columns if name != "value"]
                decimals = f"{FIELDS}, price DECIMAL(10,2)"
                frames = {
                    "value alone": events.select("value", "offset"),
                    "from_json": from_json_alone(events),
                    "parse": spark_bridge.parse(events, FIELDS),
                    "from_json, all columns": events.select(
                        fn.from_json(fn.col("value").cast("string"), FIELDS).alias("p"), *log
                    ).select("p.*", *log),
                    "parse, the same columns": spark_bridge.parse(events, FIELDS).select(*names, "_offset"),
                    "from_json, a decimal": from_json_alone(events, decimals),
                    "parse, a decimal": spark_bridge.parse(events, decimals).select(*names, "price", "_offset"),
                }
                taken: dict[str, list[float]] = {name: [] for name in frames}
                for _ in range(ROUNDS):
                    for name, frame in frames.items():
                        began = time.perf_counter()
                        frame.write.format("noop").mode("overwrite").save()
                        taken[name].append(time.perf_counter() - began)
                for name, times in taken.items():
                    rate = rows / statistics.median(times[2:])
                    beside = {"parse": "from_json, all columns", "parse, a decimal": "from_json, a decimal"}
                    other = taken[beside.get(name, "from_json")]
                    ratio = statistics.median(one / own for one, own in zip(other[2:], times[2:], strict=True))
                    print(f"{kind:8} {name:24} {rate:10,.0f} rows/s, {ratio:.2f} of from_json with the same columns")
            spark.stop()
        finally:
            bridge.end()


if __name__ == "__main__":
    main()
