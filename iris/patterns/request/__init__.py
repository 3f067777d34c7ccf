"""The caller's side of request/reply: attempts, deadlines, hedging, retries.

Promises: at most once; with ``idempotent=True`` retried within the deadline and the retry budget; cancelling the caller
cancels the handler.  Not here: the answering side (iris.patterns.service), and the choice of the member
(iris.cluster.balancing).
"""

from iris.patterns.request.attempt import budget_of
from iris.patterns.request.requests import (
    DRAINING, EXPIRED, IDEMPOTENT, MEMBER_LEFT, NOT_ALLOWED, NOT_A_MEMBER, NOT_HERE, NO_SUCH_OPERATION, OF_HANDLER,
    OVERLOADED, PAUSED, PRIORITY_SHIFT, TIMED, TOO_LARGE, Begun, Requests, failure_of, too_large,
)  # fmt: skip

__all__ = (
    "Begun",
    "DRAINING", "EXPIRED", "IDEMPOTENT", "MEMBER_LEFT", "NOT_ALLOWED", "NOT_A_MEMBER", "NOT_HERE", "NO_SUCH_OPERATION",
    "OF_HANDLER", "OVERLOADED", "PAUSED", "PRIORITY_SHIFT", "TIMED", "TOO_LARGE", "Requests", "budget_of", "failure_of",
    "too_large",
)  # fmt: skip
