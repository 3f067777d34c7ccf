"""Tunnel: an ordered, credit-based channel to one member.  State machine, halves, endpoint, streams, files.

Promises: in order, nothing lost or doubled across reconnects while both ends live; otherwise an error, never a silent
truncation; memory is bounded by the window.  Not here: survival of either process.
"""

from iris.patterns.tunnel.endpoint import TunnelEndpoint
from iris.patterns.tunnel.machine import Ending
from iris.patterns.tunnel.messages import CloseCode, Refusal
from iris.patterns.tunnel.states import TunnelState
from iris.patterns.tunnel.table import TunnelTable, TunnelsStatistics
from iris.patterns.tunnel.tunnel import FileSummary, Tunnel, TunnelStatistics, TunnelStream

__all__ = (
    "CloseCode", "Ending", "FileSummary", "Refusal", "TunnelState", "Tunnel", "TunnelEndpoint", "TunnelStatistics",
    "TunnelStream", "TunnelTable", "TunnelsStatistics",
)  # fmt: skip
