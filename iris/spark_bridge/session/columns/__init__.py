"""Columns of payloads: Spark's own expressions over what ``format("iris")`` yields, and what does not fit.

Promises: nothing here reads a payload.  Spark does, so that rows are those of ``from_json``, ``from_avro`` and
``from_protobuf`` by construction; nothing of Spark is imported before it is needed.
"""

from iris.spark_bridge.session.columns.dead_letters import dead_letters
from iris.spark_bridge.session.columns.parse import parse

__all__ = ("dead_letters", "parse")
