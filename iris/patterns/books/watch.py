"""Loss watch: what has been lost since the last look."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol, Self, final

import trio
from msgspec import Struct

from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId
from iris.kernel.tasks import checkpointed
from iris.kernel.topic_syntax import is_pattern
from iris.patterns.books.bookkeeper import Bookkeeper
from iris.patterns.books.shown import BookRow
from iris.patterns.observer import Pattern

_Key = tuple[Pattern, str, NodeId | None]


@final
class Loss(Struct, frozen=True, kw_only=True):
    """Messages that were found not to be received."""

    pattern: Pattern
    name: str
    """The cluster or topic."""
    receiver: NodeId | None
    reason: str
    """``expired``, ``refused``, ``in doubt``, or one of ``BookRow.lost``."""
    count: int


class WaitGuard(Protocol):
    """Guard of what waits at a node that may be closed meanwhile."""

    def waiting(self) -> AbstractContextManager[object]:
        """Return the block around what waits; it raises ``trio.ClosedResourceError`` when the node is closed."""
        ...


@final
class LossWatch:
    """The losses of one node as a sender, as they are found.  Made by ``Node.watch_losses``, for one task.

    Cancelling a wait loses none of them: the next one yields what was found, and what has been lost since.

    When the node is closed, it yields what was found until then, and ends; so does one that is read for the first time
    after that.

    Losses from before it was made are not reported.  A message in doubt that turns out to have been received, because
    its receiver comes back, is not taken back; nor is one that comes after it was presumed lost.
    """

    __slots__ = ("_books", "_every", "_found", "_guard", "_known", "_matches")

    def __init__(self, books: Bookkeeper, pattern: str, every: float, guard: WaitGuard) -> None:
        self._books = books
        self._matches: Final = matching(pattern)
        self._every = every
        self._guard = guard
        self._known = {_key(row): losses_of(row) for row in books.books(self._matches).rows}
        self._found: deque[Loss] = deque()

    def __repr__(self) -> str:
        return f"<LossWatch: {len(self._found)} found>"

    def __aiter__(self) -> Self:
        return self

    @checkpointed
    async def __anext__(self) -> Loss:
        while not self._found:
            began = trio.current_time()
            try:
                with self._guard.waiting():
                    books = await self._books.settled(self._matches, self._every)
                    self._compare(books.rows)
                    if not self._found:
                        await trio.sleep_until(began + self._every)
            except trio.ClosedResourceError:  # a last look at a node that is closed
                self._compare(self._books.books(self._matches).rows)
                if not self._found:
                    raise StopAsyncIteration from None
        return self._found.popleft()

    def _compare(self, rows: tuple[BookRow, ...]) -> None:
        present: dict[_Key, Mapping[str, int]] = {}
        for row in rows:
            found, present[_key(row)] = compare_losses(row, self._known.get(_key(row), {}))
            self._found += found
        self._known = present


def _key(row: BookRow) -> _Key:
    return row.pattern, row.name, row.receiver


def losses_of(row: BookRow) -> Mapping[str, int]:
    """Return what was not received, by reason; what waits may still be."""
    return {"expired": row.expired, "refused": row.refused, "in doubt": row.in_doubt, **row.lost}


def compare_losses(row: BookRow, known: Mapping[str, int]) -> tuple[list[Loss], Mapping[str, int]]:
    """Return what a row has lost that was not known, and what is known then."""
    losses = losses_of(row)
    found = [
        Loss(
            pattern=row.pattern, name=row.name, receiver=row.receiver, reason=reason, count=count - known.get(reason, 0)
        )
        for reason, count in losses.items()
        if count > known.get(reason, 0)
    ]
    return found, {**known, **{loss.reason: losses[loss.reason] for loss in found}}


def matching(pattern: str) -> Callable[[str], bool]:
    """Return the test whether a topic or cluster matches a pattern; raise ConfigError if it is no pattern."""
    if not is_pattern(pattern):
        raise ConfigError(
            f"{pattern!r} is no pattern of topics and clusters: use a name, or tokens joined by dots, of which '*' "
            "stands for any one and a last '>' for all that follow"
        )
    tokens = pattern.split(".")
    rest = tokens[-1] == ">"
    if rest:
        tokens.pop()

    def matches(name: str) -> bool:
        parts = name.split(".")
        if len(parts) != len(tokens) and not (rest and len(parts) > len(tokens)):
            return False
        return all(token in ("*", part) for token, part in zip(tokens, parts, strict=False))

    return matches
