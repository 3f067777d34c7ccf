"""The caller's side of request/reply: attempts, deadlines, hedging, retries.

Promises: at most once; with ``RequestOptions(idempotent=True)`` retried within the deadline and the retry budget;
cancelling the caller cancels the handler.  Not here: the answering side (iris.patterns.service), and the choice of the
member (iris.cluster.balancing).
"""

from iris.patterns.request.call import (
    EACH,
    IDEMPOTENCY_KEY,
    IDEMPOTENT,
    KEYED,
    PRIORITY_SHIFT,
    TIMED,
    UNDO,
    UNDOES,
    Call,
)
from iris.patterns.request.deadlines import Deadlines
from iris.patterns.request.options import PLAIN, REPEATED, RequestOptions, check_preference, preference_of
from iris.patterns.request.requests import (
    DRAINING, ELSEWHERE, EXPIRED, IN_DOUBT, MEMBER_LEFT, NOT_ALLOWED, NOT_A_MEMBER, NOT_HERE, NO_SUCH_OPERATION,
    OF_HANDLER, OVERLOADED, PAUSED, TOO_LARGE, Begun, Requests, failure_of, refusal_of,
)  # fmt: skip

__all__ = (
    "Begun", "Call", "Deadlines",
    "DRAINING", "EACH", "ELSEWHERE", "EXPIRED", "IDEMPOTENCY_KEY", "IDEMPOTENT", "IN_DOUBT", "KEYED", "MEMBER_LEFT",
    "NOT_ALLOWED", "NOT_A_MEMBER", "NOT_HERE", "NO_SUCH_OPERATION", "OF_HANDLER", "OVERLOADED", "PAUSED",
    "PLAIN", "PRIORITY_SHIFT", "REPEATED", "TIMED", "TOO_LARGE", "UNDO", "UNDOES", "RequestOptions", "Requests",
    "check_preference", "failure_of", "preference_of", "refusal_of",
)  # fmt: skip
