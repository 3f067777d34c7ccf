"""What a member has answered to idempotent requests: a repeat gets the same answer, and nothing runs again (sans-IO).

An outcome is kept until the deadline of its request.  Beyond the limits the oldest go first, whatever their deadlines:
else a caller with no deadline would hold the memory for ever.  Outcomes whose time is over are found by a hand that
goes round: it looks at two of them for each that is added, so at most as many again are kept as are still of use, and
one with a long deadline keeps none of those behind it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, final

from iris.kernel import wire
from iris.kernel.config import MIB
from iris.kernel.ids import NodeId

_COUNT: Final = 65536
"""Outcomes that a node keeps."""

_BYTES: Final = 64 * MIB
"""Their payloads.  Beyond it a repeated request may run once more."""

_LOOKS: Final = 2
"""Outcomes that are looked at for each that is added."""

Key = tuple[NodeId, int]
"""Who asked, and the number of the request."""


@final
class Remembered:
    """Outcomes of idempotent requests.

    Args:
        count: how many are kept.
        size: and how many bytes of them.
    """

    def __init__(self, *, count: int = _COUNT, size: int = _BYTES) -> None:
        self.bytes = 0
        self._count = count
        self._size = size
        self._outcomes: OrderedDict[Key, tuple[wire.Message, int, float]] = OrderedDict()
        self._round: deque[Key] = deque()
        """The same keys, and some that are gone, in the order in which they are looked at."""

    def __len__(self) -> int:
        return len(self._outcomes)

    def find(self, key: Key) -> tuple[wire.Message, int] | None:
        """Return what a request came to and its size, if that is known."""
        known = self._outcomes.get(key)
        return None if known is None else known[:2]

    def add(self, key: Key, outcome: wire.Message, size: int, until: float, now: float) -> None:
        """Keep what a request came to, of so many bytes, until that time."""
        outcomes, round_ = self._outcomes, self._round
        before = outcomes.pop(key, None)
        if before is not None:  # only a caller that uses numbers twice comes to this
            self.bytes -= before[1]
        outcomes[key] = (outcome, size, until)
        self.bytes += size
        for _ in range(min(_LOOKS, len(round_))):
            seen = round_.popleft()
            known = outcomes.get(seen)
            if known is not None:
                if known[2] >= now:
                    round_.append(seen)
                else:
                    del outcomes[seen]
                    self.bytes -= known[1]
        round_.append(key)
        while len(outcomes) > self._count or self.bytes > self._size:
            _, (_, size, _) = outcomes.popitem(last=False)
            self.bytes -= size
