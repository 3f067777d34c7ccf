"""Payloads as columns: what publishers send, as the columns of a user's schema.

Promises: a row is its own payload, whatever stands beside it; what does not fit is named, and nothing is changed
silently.  Not here: which events are read (iris.spark_bridge.datasource.reader).
"""

from iris.spark_bridge.datasource.payloads.columns import (
    AS_SPARK_CASTS,
    CORRUPT,
    MODES,
    Mode,
    TakeUnfit,
    TypedColumns,
    check_log_columns,
    typed_columns,
)
from iris.spark_bridge.datasource.payloads.framed import read_framing
from iris.spark_bridge.datasource.payloads.framing import Encoding, PayloadFraming
from iris.spark_bridge.datasource.payloads.times import TimeFormats

__all__ = (
    "AS_SPARK_CASTS", "CORRUPT", "MODES", "Encoding", "Mode", "PayloadFraming", "TakeUnfit", "TimeFormats",
    "TypedColumns", "check_log_columns", "read_framing", "typed_columns",
)  # fmt: skip
