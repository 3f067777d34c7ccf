"""Reply cache: a repeated idempotent request gets the recorded reply and does not run again (sans-IO).

An outcome is kept until the deadline of its request.  Beyond the limits the oldest go first, whatever their deadlines;
otherwise a caller without a deadline would hold the memory for ever.  They are evicted from a caller above its share,
which is the limit divided by the callers that have any, so no caller can evict the outcomes of others.

Expired outcomes are found by a clock hand that looks at two outcomes for each one added.  So at most as many expired
outcomes remain as live ones, and one with a long deadline does not delay those behind it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, final

from iris.kernel.config import MIB
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds

_COUNT: Final = 65536
"""Outcomes that a node keeps."""

_BYTES: Final = 64 * MIB
"""Size limit of their payloads, in bytes.  Beyond it a repeated request may run once more."""

_LOOKS: Final = 2
"""Outcomes that are looked at for each that is added."""

Outcome = kinds.Reply | kinds.Failure
"""Outcome of a request, as its caller gets it."""

Key = tuple[NodeId, int]
"""Node of the caller, and the number of the request."""


@final
class _Caller:
    """The outcomes of one caller by the numbers of its requests, the oldest first, and their bytes."""

    __slots__ = ("bytes", "outcomes")

    def __init__(self) -> None:
        self.bytes = 0
        self.outcomes: OrderedDict[int, tuple[Outcome, int, float]] = OrderedDict()


@final
class ReplyCache:
    """Outcomes of idempotent requests.

    Args:
        count: most outcomes that are kept.
        size: most bytes of them that are kept.
    """

    def __init__(self, *, count: int = _COUNT, size: int = _BYTES) -> None:
        self.bytes = 0
        self._len = 0
        self._count = count
        self._size = size
        self._callers: OrderedDict[NodeId, _Caller] = OrderedDict()
        """Callers that have outcomes here; the first one is the first that is asked to give some up."""
        self._round: deque[Key] = deque()
        """Keys of all outcomes, and some that are gone, in the order in which they are looked at."""

    def __len__(self) -> int:
        return self._len

    def find(self, key: Key) -> tuple[Outcome, int] | None:
        """Return the outcome of a request and its size; None if it is unknown."""
        caller = self._callers.get(key[0])
        known = None if caller is None else caller.outcomes.get(key[1])
        return None if known is None else known[:2]

    def add(self, key: Key, outcome: Outcome, size: int, until: float, now: float) -> None:
        """Keep the outcome of a request, of ``size`` bytes, until a time."""
        node, number = key
        caller = self._callers.get(node)
        if caller is None:
            caller = self._callers[node] = _Caller()
        elif number in caller.outcomes:  # only a caller that uses numbers twice comes to this
            self._drop(caller, number)
        caller.outcomes[number] = (outcome, size, until)
        caller.bytes += size
        self.bytes += size
        self._len += 1
        round_ = self._round
        for _ in range(min(_LOOKS, len(round_))):
            seen = round_.popleft()
            other = self._callers.get(seen[0])
            known = None if other is None else other.outcomes.get(seen[1])
            if other is not None and known is not None:
                if known[2] >= now:
                    round_.append(seen)
                else:
                    self._drop(other, seen[1])
                    self._leave_out(seen[0], other)
        round_.append(key)
        while self._len > self._count or self.bytes > self._size:
            self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest outcome of a caller that has more than its share."""
        callers = self._callers
        while True:
            node = next(iter(callers))
            caller = callers[node]
            if self._len > self._count:
                above = len(caller.outcomes) * len(callers) > self._count
            else:
                above = caller.bytes * len(callers) > self._size
            if above:  # one of them is: together they have more than the limit
                self._drop(caller, next(iter(caller.outcomes)))
                self._leave_out(node, caller)
                return
            callers.move_to_end(node)

    def _drop(self, caller: _Caller, number: int) -> None:
        _, size, _ = caller.outcomes.pop(number)
        caller.bytes -= size
        self.bytes -= size
        self._len -= 1

    def _leave_out(self, node: NodeId, caller: _Caller) -> None:
        if not caller.outcomes:
            del self._callers[node]
