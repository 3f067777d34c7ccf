"""Watch: the changes of a document, to one who follows them."""

from __future__ import annotations

from heapq import nsmallest
from itertools import count
from typing import Any, Final, final

import trio
from msgspec import Struct

from iris.kernel.tasks import Wakeup
from iris.patterns.state.entries import Entry, Kind
from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedMap
from iris.security.identity import covers

_KINDS: Final[tuple[Kind, ...]] = ("value", "counter", "map", "set")
_AT_A_TIME: Final = 4096
"""Names that a watch has at a time of those that were there when it began."""


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
    """Whether it is not there any more."""


@final
class _Link:
    """A place in the order of changes: of something that has changed, or of a reader.

    Attributes:
        thing: its kind and name; None for a reader.
        number: of the change, or of the last one that the reader has passed.
        came: number of the change with which the thing came to be there; 0: before.
        left: whether there is no such reader any more.
        wakeup: of a reader.
    """

    __slots__ = ("after", "before", "came", "left", "number", "thing", "wakeup")

    def __init__(self, thing: tuple[Kind, str] | None, number: int) -> None:
        self.thing: Final = thing
        self.number = number
        self.came = 0
        self.left = False
        self.wakeup = Wakeup()
        self.before = self.after = self

    def move(self, before: _Link) -> None:
        """Put this behind another one."""
        self.leave()
        self.before, self.after = before, before.after
        before.after.before = before.after = self

    def leave(self) -> None:
        """Take this out of the order."""
        self.before.after, self.after.before = self.after, self.before
        self.before = self.after = self


@final
class Changes:
    """What has changed in a document and not been seen by all that follow it, by its last change.

    All readers share it, and each is a place in it.  So it has no more than what the slowest one has not seen.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._end = _Link(None, 0)
        """Before the first change and behind the last one."""
        self._links: dict[tuple[Kind, str], _Link] = {}
        self._readers: set[_Link] = set()
        self._number = 0
        self._passed = 0
        """Number of the last change that a reader has passed."""
        self._ended = False

    def note(self, changed: list[Entry], came: set[int]) -> None:
        """Note entries that came or went; see ``Contents``."""
        for reader in [reader for reader in self._readers if reader.left]:
            self._leave(reader)
        if self._readers:
            for entry in changed:
                self._note(entry.shown, came=entry.dot in came)
            for reader in self._readers:
                reader.wakeup.wake()

    def _note(self, thing: tuple[Kind, str], *, came: bool) -> None:
        link = self._links.get(thing)
        if link is None:
            link = self._links[thing] = _Link(thing, 0)
            link.came = self._number + 1 if came else 0
        elif link.came > self._passed and not self._replica.shows(*thing):
            self._forget(link)  # no reader knows of it
            return
        elif link.number > self._passed:
            return  # no reader knows of its last change
        self._number += 1
        link.number = self._number
        link.move(self._end.before)

    def _forget(self, link: _Link) -> None:
        link.leave()
        if link.thing is not None:
            del self._links[link.thing]

    def join(self) -> _Link:
        """Return a new reader, who gets what changes from now on."""
        reader = _Link(None, self._number)
        reader.move(self._end.before)
        self._readers.add(reader)
        self._passed = self._number
        return reader

    def _leave(self, reader: _Link) -> None:
        """Forget a reader, and what only that one had not seen."""
        self._readers.discard(reader)
        reader.leave()
        while (first := self._end.after).thing is not None:
            self._forget(first)

    def next(self, reader: _Link) -> tuple[Kind, str] | None:
        """Move a reader behind the next change, and return what that is of; None: there is none."""
        while True:
            link = reader.after
            while link.thing is None:
                if link is self._end:
                    return None
                link = link.after
            known = reader.number
            reader.move(link)
            reader.number = link.number
            self._passed = max(self._passed, link.number)
            if self._end.after is link:
                self._forget(link)
            if link.came <= known or self._replica.shows(*link.thing):
                return link.thing

    def shows_first(self, reader: _Link, thing: tuple[Kind, str]) -> bool:
        """Tell whether a thing is there, of which no change is before a reader."""
        link = self._links.get(thing)
        return self._replica.shows(*thing) and (link is None or link.number <= reader.number)

    @property
    def ended(self) -> bool:
        """Whether nothing changes any more."""
        return self._ended

    def end(self) -> None:
        """Nothing changes any more: have the readers see that."""
        self._ended = True
        for reader in self._readers:
            reader.wakeup.wake()


@final
class StateWatch:
    """The changes of what a pattern matches, for one task.  Made by ``SharedState.watch``; ends with the document.

    What is there comes first.  Each change shows what is there when it is taken: of several changes to one key a slow
    reader gets the last, and of a key that came and went meanwhile nothing, or that it is removed.  So it holds up
    nobody.  It has no list of its own of what it has seen: all watches of a document share what is to be seen by one
    of them, which is never more than was in the document.

    Cancelling the iteration loses no change.
    """

    def __init__(self, pattern: str, replica: Replica, changes: Changes) -> None:
        self.pattern: Final = pattern
        self._replica = replica
        self._changes = changes
        self._reader = changes.join()
        self._kinds = list(_KINDS)
        self._names: list[str] = []
        """The next names of those that were there, of the first of the kinds; the last one first."""
        self._after = ""

    def __repr__(self) -> str:
        return f"<StateWatch of {self.pattern!r}>"

    def __del__(self) -> None:
        self._reader.left = True  # nothing else: this may be called within anything, by any thread

    def __aiter__(self) -> StateWatch:
        return self

    async def __anext__(self) -> StateChange:
        while self._kinds:  # what was there when this began
            while self._names:
                thing = self._kinds[0], self._names.pop()
                self._after = thing[1]
                if covers(self.pattern, self._after) and self._changes.shows_first(self._reader, thing):
                    return self._read(*thing)
            await trio.lowlevel.checkpoint()
            self._find_names()
        for step in count(1):
            change = self._changes.next(self._reader)
            if change is not None and covers(self.pattern, change[1]):
                return self._read(*change)
            if change is not None and step % _AT_A_TIME == 0:
                await trio.lowlevel.checkpoint()
            elif change is None and self._changes.ended:
                break
            elif change is None:
                await self._reader.wakeup.wait()
        raise StopAsyncIteration

    def _find_names(self) -> None:
        after = self._after
        names = (name for name in self._replica.names(self._kinds[0]) if name > after)
        self._names = nsmallest(_AT_A_TIME, names)[::-1]
        if not self._names:
            del self._kinds[0]
            self._after = ""

    def _read(self, kind: Kind, key: str) -> StateChange:
        values, there = SharedMap(self._replica, ""), self._replica.shows(kind, key)
        value = None
        if there and kind == "value":
            value = values[key]
        elif there and kind == "counter":
            value = values.counter(key).value
        return StateChange(key=key, kind=kind, value=value, removed=not there)
