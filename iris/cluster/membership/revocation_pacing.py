"""Revocation pacing: a rate limit for lists between this node and each peer.  Sans-IO.

A list takes up to 256 KiB, and milliseconds to verify.  A peer that shows an old one, says that frames were lost, or
connects again and again, has the newest one sent to it: few bytes of it would cost many of this node.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from iris.kernel.names import NodeId

_SPACING: Final = 1.0
"""Seconds between two lists to one peer."""

_REPEATS: Final = 3
_REPEAT_SPACING: Final = 10.0
"""Times that the same list is repeated at that pace; after that, every ten seconds at most."""

_SHOWN: Final = 16
_SHOWN_RATE: Final = 2.0
"""Lists of one peer that are looked at, at once, and for each second in the long run.  Honest ones send one."""

_REMEMBERED: Final = 4096
"""Nodes that are remembered, also while they are not linked; the one seen longest ago is forgotten first."""


@final
class _PacingSlot:
    __slots__ = ("has", "sent", "sent_at", "shown", "since", "times")

    def __init__(self, now: float) -> None:
        self.has = 0
        self.sent = 0
        self.sent_at = 0.0
        self.times = 0
        self.shown = float(_SHOWN)
        self.since = now


@final
class RevocationPacing:
    """The rate limit of every peer, with the list that it was sent and the one it has shown."""

    def __init__(self) -> None:
        self._turns: OrderedDict[NodeId, _PacingSlot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def next_list(self, node: NodeId, signed: bytes, now: float) -> float | None:
        """Return the seconds until a list may be sent to a peer: 0 if now, which counts; None: it has it."""
        turn, mark = self._turn(node, now), hash(signed)  # a list is long, and the peers may be many
        if turn.has == mark:
            return None
        if turn.times:
            often = turn.sent == mark and turn.times > _REPEATS
            wait = turn.sent_at + (_REPEAT_SPACING if often else _SPACING) - now
            if wait > 0:
                return wait
        turn.times = turn.times + 1 if turn.sent == mark else 1
        turn.sent, turn.sent_at = mark, now
        return 0.0

    def may_show(self, node: NodeId, now: float) -> bool:
        """Return whether a list that a peer sends is looked at; that counts."""
        turn = self._turn(node, now)
        turn.shown = min(float(_SHOWN), turn.shown + (now - turn.since) * _SHOWN_RATE)
        turn.since = now
        if turn.shown < 1:
            return False
        turn.shown -= 1
        return True

    def shown(self, node: NodeId, signed: bytes) -> None:
        """A peer has sent a list: it has that one."""
        turn = self._turns.get(node)
        if turn is not None:
            turn.has = hash(signed)

    def _turn(self, node: NodeId, now: float) -> _PacingSlot:
        turn = self._turns.get(node)
        if turn is None:
            if len(self._turns) >= _REMEMBERED:
                self._turns.popitem(last=False)
            turn = self._turns[node] = _PacingSlot(now)
        else:
            self._turns.move_to_end(node)
        return turn
