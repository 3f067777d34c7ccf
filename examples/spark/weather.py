"""Each flight with the weather of its hour: two streams, joined.

Run it: python examples/spark/weather.py
"""

from __future__ import annotations

from pathlib import Path

from airport import FLIGHT, WEATHER, open_bridge, open_spark, publish, read_stream, read_table
from pyspark.sql import DataFrame, Row, SparkSession

ROWS = 5000


def with_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Flights with wind and visibility.  The watermarks let Spark forget what has met its other half."""
    return flights.withWatermark("time_hour", "6 hours").join(
        weather.withWatermark("time_hour", "6 hours"), ["origin", "time_hour"]
    )


def run(spark: SparkSession, directory: Path, rows: int = ROWS) -> list[Row]:
    """Publish both tables, let Spark read what is there, and return the joined rows."""
    publish("flights", read_table("flights.csv.zip", rows), FLIGHT)
    publish("weather", read_table("weather.csv", rows // 10), WEATHER)
    query = (
        with_weather(read_stream(spark, "flights", FLIGHT), read_stream(spark, "weather", WEATHER))
        .writeStream.format("memory")
        .queryName("weather")
        .option("checkpointLocation", str(directory / "weather"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table("weather").orderBy("time_hour", "origin", "carrier", "flight").collect()


if __name__ == "__main__":
    with open_bridge() as directory:
        joined = run(open_spark(), directory)
        print(f"{len(joined)} flights with weather; those in the strongest wind:")
        for row in sorted(joined, key=lambda row: row.wind_speed or 0, reverse=True)[:5]:
            print(f"{row.time_hour} {row.carrier} {row.flight} from {row.origin}: {row.wind_speed:.0f} miles/h")
