"""Rows that a Spark query has written and not committed, and how many bytes each cluster may have there.

Promises: what is given up leaves no file; a cluster that stages without end is refused, and others are not slowed.
"""

from iris.spark_bridge.staging.staging import StagedPart, Staging, new_part, write_rows
from iris.spark_bridge.staging.usage import Usage

__all__ = (
    "StagedPart", "Staging", "Usage", "new_part", "write_rows",
)  # fmt: skip
