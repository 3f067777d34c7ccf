"""The ordered queue of messages to one peer: batching, bulk sources, back-pressure.

Promises: messages leave in the order in which they were posted, one batch for each frame; what waits is bounded in
bytes; a link outlives connections and sessions.  Not here: sessions (handed in) and connections (transport).
"""

from iris.kernel.link.bulk import BulkSource
from iris.kernel.link.link import CONTROL_RESERVE, Link, LinkStatistics
from iris.kernel.link.run import OpenRun

__all__ = (
    "CONTROL_RESERVE", "BulkSource", "Link", "LinkStatistics", "OpenRun",
)  # fmt: skip
