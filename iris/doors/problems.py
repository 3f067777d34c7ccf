"""Problems, as every door reports them: the numbers of HTTP, a short stable word, and a text for people.

Source: RFC 9457 (problem details), whose fields these are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, final

from iris.kernel.errors import (
    ConfigError,
    DeliveryError,
    EventsLost,
    IrisError,
    LeaseLost,
    LocalProtocolError,
    NoSuchCluster,
    NotAllowed,
    NotSent,
    Overloaded,
    PayloadTooLarge,
    RemoteError,
    RequestTimeout,
    Unknown,
    text_for_others,
)
from iris.kernel.names import is_name

_KINDS: Final[tuple[tuple[type[IrisError], int, str], ...]] = (
    (NoSuchCluster, 404, "no_such_cluster"),
    (NotAllowed, 403, "not_allowed"),
    (Overloaded, 503, "overloaded"),
    (NotSent, 503, "not_sent"),
    (RequestTimeout, 504, "timeout"),
    (PayloadTooLarge, 413, "too_large"),
    (EventsLost, 502, "events_lost"),
    (Unknown, 502, "unknown"),
    (LeaseLost, 409, "lease_lost"),
    (DeliveryError, 502, "not_delivered"),
    (ConfigError, 400, "malformed"),
    (LocalProtocolError, 400, "malformed"),
)
"""Status and word of each error; the first one that fits counts."""

_BY_CODE: Final = {
    "bad_request": 400, "no_such_operation": 404, "no_outcomes": 400, "key_reused": 422, "too_many_keys": 503,
    "no_bridge": 503,
}  # fmt: skip
"""Status of errors that a member calls by these words; of all others it is 502."""

NODE_CODES: Final[Mapping[int, frozenset[str]]] = {
    status: frozenset(
        [code for _, one, code in _KINDS if one == status] + [code for code, one in _BY_CODE.items() if one == status]
    )
    for status in sorted({*(status for _, status, _ in _KINDS), *_BY_CODE.values(), 502})
}
"""Codes of errors that a node raises, by status; 502 has also the words of members."""


@final
class Problem(Exception):
    """Why a client does not get what it has asked for.  Its connection is still usable."""

    def __init__(self, status: int, code: str, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.status: Final = status
        """Status, as of HTTP: 4xx is for the client to mend, 5xx is not."""
        self.code: Final = code
        """Short stable word."""
        self.retry_after: Final = retry_after
        """Seconds after which to try again.  None if that is unknown."""

    @property
    def detail(self) -> str:
        """A text for people."""
        return str(self.args[0])

    def document(self) -> dict[str, object]:
        """Return it as a map that JSON can hold."""
        after = {} if self.retry_after is None else {"retry_after": math.ceil(self.retry_after)}
        return {"status": self.status, "code": self.code, "detail": self.detail, **after}


def problem_of(error: IrisError) -> Problem:
    """Return the problem that a client gets for an error that a node raises."""
    if isinstance(error, RemoteError):
        code = error.code if is_name(error.code) else "error"  # it stands in lines, and may be anything
        return Problem(_BY_CODE.get(code, 502), code, error.message)
    after = error.retry_after if isinstance(error, Overloaded) else None
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            return Problem(status, code, text_for_others(error), retry_after=after)
    return Problem(502, "not_delivered", text_for_others(error))
