"""Copies of a member's log, on other machines: how they follow it, and how one takes its place.

Promises: what ``min_copies`` copies do not have is not confirmed, and given to no reader; a log that was promoted goes
on with the same offsets, publishers, groups and batches; a former primary confirms nothing.  Not here: who decides that
a primary is gone, and when.
"""

from iris.spark_bridge.copies.follower import BridgeCopy, later_term, open_copy, read_state
from iris.spark_bridge.copies.primary import PrimaryCopies, deposed
from iris.spark_bridge.copies.promotion import Promotion, promote
from iris.spark_bridge.copies.terms import (
    DEFAULT_COPY, LogState, Settings, decode_state_untrusted, encode_state, split_followed,
)  # fmt: skip

__all__ = (
    "DEFAULT_COPY", "BridgeCopy", "LogState", "PrimaryCopies", "Promotion", "Settings",
    "decode_state_untrusted", "deposed", "encode_state", "later_term", "open_copy", "promote",
    "read_state", "split_followed",
)  # fmt: skip
