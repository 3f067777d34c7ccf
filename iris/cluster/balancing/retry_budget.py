"""Retry budget: how many retries and hedges may be sent, as a share of the requests.

A token bucket (sans-IO): each request brings a part of a token, time brings some more, each retry or hedge takes a
whole one.  While few requests fail all can be retried.  When most fail, retries stay a small share of the load instead
of multiplying it, which is what keeps an overloaded cluster overloaded.  Source: Finagle's ``RetryBudget``.
"""

from __future__ import annotations

from typing import final


@final
class RetryBudget:
    """The retries and hedges that may still be sent.

    Requests are counted by the code that makes them and brought here only when an extra one is wanted: nothing is spent
    on requests that need none.

    Args:
        share: share of a token that each request adds.
        rate: tokens per second, so that a few are allowed where there are few requests.
        reserve: tokens at the beginning, and the most that are kept.
    """

    __slots__ = ("_rate", "_requests", "_reserve", "_share", "_since", "refused", "taken", "tokens")

    def __init__(self, *, share: float, rate: float, reserve: float) -> None:
        self._share = share
        self._rate = rate
        self._reserve = reserve
        self._requests = 0
        self._since: float | None = None
        self.tokens = reserve
        self.taken = 0
        """Extra requests that were made."""
        self.refused = 0
        """Extra requests that were not."""

    def __repr__(self) -> str:
        return f"<RetryBudget of {self.tokens:.1f}: {self.taken} taken, {self.refused} refused>"

    def spend(self, requests: int, now: float, *, forced: bool = False) -> bool:
        """Take one if there is one.

        Args:
            requests: made so far, the extra ones included.
            now: this moment.
            forced: take it in any case; the debt is paid by those that come later, down to minus ``reserve``.
        """
        elapsed = 0.0 if self._since is None else max(0.0, now - self._since)
        earned = self._share * (requests - self._requests) + self._rate * elapsed
        self.tokens = min(self._reserve, self.tokens + earned)
        self._requests, self._since = requests, now
        if self.tokens < 1 and not forced:
            self.refused += 1
            return False
        self.tokens = max(-self._reserve, self.tokens - 1)
        self.taken += 1
        return True
