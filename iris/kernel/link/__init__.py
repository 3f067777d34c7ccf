"""Link: the ordered queue of messages to one peer, with batching, bulk sources and back-pressure.

It promises that messages leave in the order in which they were posted, one batch for each frame; that what waits is
bounded in bytes; and that a link outlives its connections and its sessions.  It does not encrypt (a session is handed
in), does not open connections (iris.kernel.transport), and does not know whether the peer has received a message.
"""

from iris.kernel.link.bulk import BulkSource
from iris.kernel.link.link import CONTROL_RESERVE, Link, LinkOwner, LinkStatistics
from iris.kernel.link.run import OpenRun

__all__ = (
    "CONTROL_RESERVE", "BulkSource", "Link", "LinkOwner", "LinkStatistics", "OpenRun",
)  # fmt: skip
