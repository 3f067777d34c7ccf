"""Spark's results go back into the mesh, and a service answers from them: how many flights of a carrier were late?

Run it: python examples/spark/results.py
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from queue import Queue
from threading import Event, Thread

import trio
from airport import FLIGHT, open_bridge, open_spark, publish, read_stream, read_table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import iris

ROWS = 5000
LATE = 60

late_by_carrier: Counter[str] = Counter()
board = iris.Service("board")


@board.request
async def count(request: iris.Request) -> int:
    """How many late flights of a carrier are known."""
    return late_by_carrier[request.payload]


def late_flights(flights: DataFrame) -> DataFrame:
    """What is published: one event for each flight that left more than an hour late."""
    late = flights.where(F.col("dep_delay") > LATE)
    return late.select(F.col("carrier").alias("key"), F.to_json(F.struct("*")).alias("value"))


def run_query(spark: SparkSession, directory: Path) -> None:
    """Read what is there, and publish what Spark makes of it: each event once, also after a crash."""
    query = (
        late_flights(read_stream(spark, "flights", FLIGHT))
        .writeStream.format("iris")
        .option("topic", "late.flights")
        .option("checkpointLocation", str(directory / "results"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def count_results(spark: SparkSession) -> int:
    """How many results the bridge's log holds."""
    return spark.read.format("iris").option("subscribe", "late.>").load().count()


async def serve(ready: Event, results: Queue[int], answers: dict[str, int]) -> None:
    """Be the board while Spark works in the main thread; then ask as a passenger does."""
    async with iris.open_node("board") as node, node.join("board", board), node.subscribe("late.>") as events:
        await node.wait_for("bridge")
        ready.set()
        for _ in range(await trio.to_thread.run_sync(results.get)):
            late = await anext(events)
            late_by_carrier[late.key or ""] += 1
        async with iris.open_node("passenger") as passenger:
            for carrier in answers:
                answers[carrier] = await passenger.request("board", carrier)


def run(spark: SparkSession, directory: Path, carriers: list[str], rows: int = ROWS) -> dict[str, int]:
    """Publish flights, run the query while the service listens, and return what the service answers."""
    publish("flights", read_table("flights.csv.zip", rows), FLIGHT)
    ready, results, answers = Event(), Queue[int](), dict.fromkeys(carriers, 0)
    mesh = Thread(target=trio.run, args=(serve, ready, results, answers))
    mesh.start()
    ready.wait()
    run_query(spark, directory)
    results.put(count_results(spark))
    mesh.join()
    return answers


if __name__ == "__main__":
    with open_bridge() as directory:
        print(run(open_spark(), directory, ["UA", "B6", "EV"]))
