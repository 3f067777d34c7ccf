"""Patience: for how long a sender waits for receivers that take nothing, before it goes on without them (sans-IO).

One rule for broadcasts and events:

- The time for which a sender waits for nodes of one owner adds up.  An owner is who holds the key of a cluster, or
  of another realm: it can start any number of nodes, so that a limit for each node would be none.
- When ``limit`` seconds are used up, the sender goes on without the nodes that it waited for.
- The time counts anew with each half of a window that was sent to the owner: who takes that much within ``limit``
  seconds is waited for as long as it likes, and who takes a little again and again is not.
- Each second in which the sender did not wait for the owner gives back a second of it.
"""

from __future__ import annotations

from typing import Final, final


@final
class Patience:
    """Patience of one sender with the nodes of one owner.

    Args:
        limit: seconds.
        half: amount that has to be sent for the time to count anew, where it is always the same.

    Attributes:
        sent: amount that was sent to the owner's nodes so far.
    """

    __slots__ = ("_ended", "_half", "_limit", "_sent", "_since", "_waited", "_waiting", "sent")

    def __init__(self, limit: float, half: int = 1) -> None:
        self.sent = 0
        self._limit: Final = limit
        self._half = half
        self._waited = self._since = self._ended = 0.0
        self._sent = 0
        self._waiting = 0

    def begin(self, now: float, half: int | None = None) -> float:
        """A wait begins, beside others or alone; return until when the sender waits."""
        if not self._waiting:
            if self.sent - self._sent >= (self._half if half is None else half):
                self._waited, self._sent = 0.0, self.sent
            self._waited = max(0.0, self._waited - (now - self._ended))
            self._since = now
        self._waiting += 1
        return self._since + self._limit - self._waited

    def end(self, now: float) -> None:
        """A wait that has begun is over."""
        self._waiting -= 1
        if not self._waiting:
            self._waited += now - self._since
            self._ended = now
