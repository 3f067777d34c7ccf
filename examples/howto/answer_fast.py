"""Spark answers events within a second: a session set up for latency, and a stream that publishes what it finds."""

import trio
from pyspark.sql import SparkSession

import iris
import iris.spark_bridge

# [fast]
spark = iris.spark_bridge.configure(SparkSession.builder, latency=True).getOrCreate()
events = spark.readStream.format("iris").options(subscribe="orders.>", inlineRows=256).load()
publish = iris.spark_bridge.foreach_batch("answers-1", topic="answers", inline_rows=256)
query = events.select("key", "value").writeStream.foreachBatch(publish).option("checkpointLocation", "answers").start()
# [/fast]


async def main() -> None:
    async with iris.open_node("shop") as node, node.subscribe("answers") as answers:
        await node.publish_confirmed("orders.created", b"tea")
        with trio.fail_after(60):
            answer = await anext(answers)
        print(f"{answer.topic}: {answer.payload.decode()}")


trio.run(main)
query.stop()
