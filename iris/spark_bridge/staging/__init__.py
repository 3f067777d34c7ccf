"""Staging: rows that a Spark query has written and not committed, and the quota of each cluster.

Promises: a part is on disk whole or not at all; a batch that is given up leaves no file; a cluster that stages without
end is refused, and others are not slowed.  Not here: the commit (iris.spark_bridge.server).
"""

from iris.spark_bridge.staging.staging import StagedPart, Staging, cut_rows, new_part, write_rows
from iris.spark_bridge.staging.usage import Usage

__all__ = (
    "StagedPart", "Staging", "Usage", "cut_rows", "new_part", "write_rows",
)  # fmt: skip
