"""SparkSession, Java and the Python of Spark's workers: what ``iris.spark_bridge.configure`` sets up.

Promises: nothing of Spark is imported before it is needed; the machine's own Java is used where there is one.
"""

from iris.spark_bridge.session.registration import register
from iris.spark_bridge.session.session import configure, foreach_batch

__all__ = (
    "configure", "foreach_batch", "register",
)  # fmt: skip
