"""A durable log of events that Apache Spark reads."""
