"""What a link has counted."""

from __future__ import annotations

from typing import final

from iris.kernel.values import dataclass


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatistics:
    """Counters of one link since it was made.  posted = sent + lost + waiting, in messages."""

    posted: int
    sent: int
    lost: int
    waiting: int
    refused: int
    frames_sent: int
    bytes_sent: int
    bytes_waiting: int
