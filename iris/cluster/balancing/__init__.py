"""Which member to ask: power of two choices, subsetting, circuit breaker, retry budget, locality.

Promises: state is bounded by the members known; a choice costs constant time.  Machines: time and randomness are
arguments.
"""

from iris.cluster.balancing.balancer import Balancer
from iris.cluster.balancing.locality import AtSite, SiteOrder
from iris.cluster.balancing.retry_budget import RetryBudget

__all__ = (
    "AtSite", "Balancer", "RetryBudget", "SiteOrder",
)  # fmt: skip
