"""Watch: the changes of a document, as an async iterator."""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import nsmallest
from typing import Any, Final, final
from weakref import WeakSet

import trio
from msgspec import Struct

from iris.kernel.tasks import Wakeup, checkpointed
from iris.patterns.state.entries import Entry, Kind
from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedMap

_KINDS: Final[tuple[Kind, ...]] = ("value", "counter", "map", "set")
_AT_A_TIME: Final = 4096
"""Names that a watch has at a time."""

_Thing = tuple[Kind, str]


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
    """True if it is not there any more."""


@final
class Changes:
    """Changes of a document that not all watches have seen: of each thing the last one.

    All watches share them, each with the number of the last change that it has seen: no more are kept than the slowest
    watch has to see.
    """

    def __init__(self, replica: Replica) -> None:
        self.replica: Final = replica
        self.ended = False
        """True once nothing changes any more."""
        self.number = 0
        """Number of the last change."""
        self._order: OrderedDict[_Thing, tuple[int, int]] = OrderedDict()
        """Number of the last change of each thing, and of the one with which it came to be there; 0: before."""
        self._watches: WeakSet[StateWatch] = WeakSet()
        self._looks = 0
        """Looks of watches since what all have seen was forgotten."""

    def __len__(self) -> int:
        """Return the number of things whose change has not been seen by all."""
        return len(self._order)

    def join(self, watch: StateWatch) -> None:
        """Add a watch."""
        self._watches.add(watch)

    def note(self, changed: list[Entry], came: set[int]) -> None:
        """Note entries that came or went; see ``EntryIndex``."""
        seen = max((watch.seen for watch in self._watches), default=None)
        if seen is None:
            self._order.clear()
            return
        for entry in changed:
            thing = entry.shown
            number, since = self._order.get(thing, (0, self.number + 1 if entry.dot in came else 0))
            if number and since > seen and not self.replica.contents.shows(*thing):
                del self._order[thing]  # nobody knows of it
            elif number <= seen:  # else nobody knows of its last change
                self.number += 1
                self._order[thing] = self.number, since
                self._order.move_to_end(thing)
        self.wake()

    def wake(self) -> None:
        """Wake all watches."""
        for watch in list(self._watches):
            watch.wakeup.wake()

    def after(self, seen: int) -> deque[tuple[_Thing, int, int]]:
        """Return the next things that have changed after the change ``seen``, the last one first."""
        self._looks += 1
        if self._looks >= len(self._watches):  # not at each look: a change would cost the square of them
            self._looks = 0
            first = min(watch.seen for watch in self._watches)
            while self._order and next(iter(self._order.values()))[0] <= first:
                self._order.popitem(last=False)
        waiting: deque[tuple[_Thing, int, int]] = deque(maxlen=_AT_A_TIME)
        for thing, (number, since) in reversed(self._order.items()):
            if number <= seen:
                break
            waiting.append((thing, number, since))
        return waiting

    def awaits(self, thing: _Thing, seen: int) -> bool:
        """Return whether a thing has changed after the change ``seen``."""
        return self._order.get(thing, (0, 0))[0] > seen


@final
class StateWatch:
    """Changes of what a pattern matches, for one task.  Made by ``SharedState.watch``; ends with the document.

    What is there comes first.  Each change shows what is there when it is received: of several changes to one key a
    slow reader gets the last, and of a key that came and went meanwhile nothing, or its removal.  So it delays nobody.
    All watches of a document share what one of them has to see, never more than was in the document.

    Cancelling the iteration loses no change.
    """

    def __init__(self, pattern: str, changes: Changes) -> None:
        self.pattern: Final = pattern
        self.seen = changes.number
        """Number of the last change that this watch has seen."""
        self.wakeup: Final = Wakeup()
        self._changes = changes
        self._kinds = list(_KINDS)
        """Kinds whose things that were there at the beginning are still to be shown; the first one is being shown."""
        self._name = ""
        """Last name of that kind that was shown."""
        self._names: list[str] = []
        """Next names of that kind, the last one first."""
        self._waiting: deque[tuple[_Thing, int, int]] = deque()
        changes.join(self)

    def __repr__(self) -> str:
        return f"<StateWatch of {self.pattern!r}>"

    def __aiter__(self) -> StateWatch:
        return self

    @checkpointed
    async def __anext__(self) -> StateChange:
        changes = self._changes
        if changes.replica.is_noting:
            await self._pause()
        while self._kinds:
            while self._names:
                thing = self._kinds[0], self._names.pop()
                self._name = thing[1]
                if _matches(self.pattern, thing[1]) and self._shows(*thing) and not changes.awaits(thing, self.seen):
                    return self._read(*thing)
            await self._pause()
            names = (name for name in changes.replica.contents.names(self._kinds[0]) if name > self._name)
            self._names = nsmallest(_AT_A_TIME, names)[::-1]
            if not self._names:
                del self._kinds[0]
                self._name = ""
        while True:
            while self._waiting:
                thing, number, since = self._waiting.pop()
                known, self.seen = self.seen, number
                if _matches(self.pattern, thing[1]) and (since <= known or self._shows(*thing)):
                    return self._read(*thing)
            self._waiting = changes.after(self.seen)
            if self._waiting:
                await self._pause()
            elif changes.ended:
                raise StopAsyncIteration
            else:
                await self.wakeup.wait()

    async def _pause(self) -> None:
        """Let others run, and a merge note all that is seen of it: what was shown before would count as unknown."""
        await trio.lowlevel.checkpoint()
        while self._changes.replica.is_noting and not self._changes.ended:
            await self.wakeup.wait()

    def _shows(self, kind: Kind, name: str) -> bool:
        return self._changes.replica.contents.shows(kind, name)

    def _read(self, kind: Kind, key: str) -> StateChange:
        values, there = SharedMap(self._changes.replica, ""), self._shows(kind, key)
        value = None
        if there and kind == "value":
            value = values[key]
        elif there and kind == "counter":
            value = values.counter(key).value
        return StateChange(key=key, kind=kind, value=value, removed=not there)


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name, whose own ``*`` and ``>`` are characters."""
    tokens, parts = pattern.split("."), name.split(".")
    if tokens[-1] == ">" and len(parts) >= len(tokens):
        del tokens[-1], parts[len(tokens) :]
    return len(parts) == len(tokens) and all(token in ("*", part) for token, part in zip(tokens, parts, strict=True))
