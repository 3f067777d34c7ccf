"""The Spark bridge under load and under kills: the figures of docs/reference/spark.md."""
