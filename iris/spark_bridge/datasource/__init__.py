"""``format("iris")``: the Spark source and sink.

Promises: a range read twice is the same both times; a batch written twice is stored once.
"""

from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.datasource.reader import TopicFilter, keep_topics, to_batches

__all__ = (
    "SourceOptions", "TopicFilter", "keep_topics", "to_batches",
)  # fmt: skip
