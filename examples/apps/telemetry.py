"""Machine telemetry into Spark: machines publish what they measure, a bridge stores it, Spark finds the hot ones.

Run it: python examples/apps/telemetry.py, while "iris bridge --topic 'telemetry.>' --data DIRECTORY" runs.
"""

import trio
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import iris
import iris.spark_bridge


async def measure() -> None:
    async with iris.open_node("machines") as node:
        await node.wait_for("bridge", timeout=20)
        async with node.confirming(timeout=30) as events:
            for number in range(300):
                machine = f"press-{number % 3}"
                degrees = 60.0 + 10 * (number % 3) + number / 100
                reading = {"machine": machine, "degrees": degrees}
                await events.publish(f"telemetry.{machine}", reading, key=machine)
    print("300 readings are on the disk of the bridge")


def report() -> None:
    spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
    events = spark.readStream.format("iris").option("subscribe", "telemetry.>").load()
    readings = iris.spark_bridge.parse(events, "machine STRING, degrees DOUBLE")
    query = readings.writeStream.format("memory").queryName("readings").trigger(availableNow=True).start()
    query.awaitTermination()
    hot = spark.table("readings").groupBy("machine").agg(F.count("*").alias("n"), F.max("degrees").alias("top"))
    for row in hot.orderBy("machine").collect():
        print(f"{row.machine}: {row.n} readings, at most {row.top}")


if __name__ == "__main__":
    trio.run(measure)
    report()
