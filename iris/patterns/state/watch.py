"""Watch: the changes of a document, to one who follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, final

from msgspec import Struct

from iris.kernel.tasks import Wakeup
from iris.patterns.state.entries import Kind
from iris.security.identity import covers


@final
class StateChange(Struct, frozen=True, kw_only=True):
    """A key or shared type of a document, as it is now."""

    key: str
    """The key of a value, or the name of another shared type."""
    kind: Kind
    """``value``, or ``counter``, ``set`` or ``map``."""
    value: Any
    """The value, or that of the counter; None for what is removed and for the other types, which are to be read."""
    removed: bool
    """Whether the key is not there any more."""


@final
class StateWatch:
    """The changes of what a pattern matches, for one task.  Made by ``SharedState.watch``; ends with the document.

    What is there comes first.  Each change shows what is there when it is taken: of several changes to one key a slow
    reader gets the last, and nothing of a key that came and went meanwhile.  So it holds up nobody, and what waits for
    it is never more than the document, and what the reader has seen of it.

    Cancelling the iteration loses no change.
    """

    def __init__(
        self,
        pattern: str,
        present: Iterable[tuple[Kind, str]],
        read: Callable[[Kind, str], StateChange],
        is_there: Callable[[Kind, str], bool],
    ) -> None:
        self.pattern: Final = pattern
        self._read = read
        self._is_there = is_there
        self._reported: set[tuple[Kind, str]] = set()
        """What the reader has seen to be there."""
        self._waiting: dict[tuple[Kind, str], None] = {}
        self._wakeup = Wakeup()
        self._ended = False
        for kind, key in present:
            self._note(kind, key)

    def __repr__(self) -> str:
        return f"<StateWatch of {self.pattern!r}, {len(self._waiting)} changes wait>"

    def __aiter__(self) -> StateWatch:
        return self

    async def __anext__(self) -> StateChange:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            await self._wakeup.wait()
        kind, key = next(iter(self._waiting))
        del self._waiting[kind, key]
        change = self._read(kind, key)
        if self._is_there(kind, key):
            self._reported.add((kind, key))
        else:
            self._reported.discard((kind, key))
        return change

    def _note(self, kind: Kind, key: str) -> None:
        if not covers(self.pattern, key):
            return
        if (kind, key) in self._reported or self._is_there(kind, key):
            self._waiting[kind, key] = None
            self._wakeup.wake()
        else:
            self._waiting.pop((kind, key), None)

    def _end(self) -> None:
        self._ended = True
        self._wakeup.wake()
