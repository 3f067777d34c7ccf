"""Load balancing: which member to ask.  Power of two choices, subsetting, circuit breaker, retry budget, locality.

It promises that its state is bounded by the members known, and that a choice costs constant time.  These are machines:
time and randomness are arguments.  They send nothing (iris.patterns.request) and decide about nobody's life
(iris.cluster.swim).
"""

from iris.cluster.balancing.balancer import Balancer
from iris.cluster.balancing.locality import AtSite, SiteOrder
from iris.cluster.balancing.retry_budget import RetryBudget
from iris.cluster.balancing.subset import Aperture

__all__ = (
    "Aperture", "AtSite", "Balancer", "RetryBudget", "SiteOrder",
)  # fmt: skip
