"""The Spark bridge under load and under kills: the figures of docs/explanation/measured/spark.md."""
