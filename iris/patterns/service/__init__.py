"""The answering side: services, queues, workers, load shedding, reply cache, deadlines.

Promises: queues are bounded and say so (Overloaded); what expired while it waited is not run; a request that comes
again
is answered from the reply cache while this member lives; a handler that fails is logged here.
"""

from iris.patterns.service.server import Server
from iris.patterns.service.service import Limits, Service, callers
from iris.patterns.service.tunnels import Tunnels
from iris.patterns.service.worker_pool import ServiceStatistics

__all__ = (
    "Limits", "Server", "Service", "ServiceStatistics", "Tunnels", "callers",
)  # fmt: skip
