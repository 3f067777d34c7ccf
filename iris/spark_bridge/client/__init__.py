"""Bridge client: asks a bridge from trio or from blocking code.  Offsets, ranges, connections.

Promises: a range is read from the member that holds it, and each chunk is verified by its checksum; errors of a bridge
keep their text; every call may be retried.  Not here: anything of Spark (iris.spark_bridge.datasource).
"""

from iris.spark_bridge.client.batches import wanted_batches
from iris.spark_bridge.client.blocking_portal import BlockingPortal, portal_to
from iris.spark_bridge.client.bridge_watch import BridgeWatch
from iris.spark_bridge.client.client import BridgeClient, check_chunk, one_error
from iris.spark_bridge.client.connection import Connection
from iris.spark_bridge.client.offsets import (
    EARLIEST, LATEST, Offsets, Position, Range, TopicSelection, Where, advance, check_order,
    cut_ranges, number_of, parse_offsets, place, ranges_before, ranges_between, split_ranges, with_beginnings,
)  # fmt: skip

__all__ = (
    "EARLIEST", "LATEST", "BlockingPortal", "BridgeClient", "BridgeWatch", "Connection", "Offsets",
    "Position", "Range", "TopicSelection", "Where", "advance", "check_chunk", "check_order",
    "cut_ranges", "number_of", "one_error", "parse_offsets", "place", "portal_to", "ranges_before", "ranges_between",
    "split_ranges", "wanted_batches", "with_beginnings",
)  # fmt: skip
