"""Functions that users call beside ``format("iris")``: ``configure``, which sets up Spark, and columns of payloads.

Promises: nothing of Spark is imported before it is needed; the machine's own Java is used where there is one.
"""

from iris.spark_bridge.session.columns import dead_letters, parse
from iris.spark_bridge.session.kafka import load
from iris.spark_bridge.session.registration import register
from iris.spark_bridge.session.session import configure, foreach_batch

__all__ = (
    "configure", "dead_letters", "foreach_batch", "load", "parse", "register",
)  # fmt: skip
