"""How long requests wait at a member, as its callers are to hear of it (sans-IO).

It is what those waited that began lately; at least what has waited the one that waits longest now, for handlers may be
stuck; and it fades while none begins.  A caller gives no work to a member at which it waits a second: without the first
of these rules nobody would learn that a queue stands still, and without the other one nobody that it is gone.
"""

from __future__ import annotations

from typing import Final, final

_WEIGHT: Final = 0.2
"""Of the newest wait in the average."""

_HALVED: Final = 0.25
"""Seconds without a request that begins after which former waits count half."""

_NOTHING: Final = 1e-6


@final
class Waits:
    """The waits of one member's requests.  All times in seconds."""

    __slots__ = ("_at", "lately")

    def __init__(self) -> None:
        self.lately = 0.0
        """What requests waited when the last one began."""
        self._at = 0.0

    def begun(self, arrived: float, now: float) -> None:
        """A request begins that arrived then."""
        waited = self._faded(now)
        self.lately = waited + _WEIGHT * (now - arrived - waited)
        self._at = now

    def delay(self, oldest: float | None, now: float) -> float:
        """Return how long requests wait; ``oldest``: when the first of those arrived that wait now, if any do."""
        faded = self._faded(now)
        return faded if oldest is None else max(faded, now - oldest)

    def _faded(self, now: float) -> float:
        return float(self.lately * 0.5 ** ((now - self._at) / _HALVED)) if self.lately > _NOTHING else 0.0
