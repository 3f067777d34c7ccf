"""Shared types of a document: counter, set and map.  Plain objects without a task or a wait.

What each method changes is changed here at once and on its way to the other members, who see it in the order of this
member.  Changes between two waits of the program are one: others see all of them or none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, MutableSet
from collections.abc import Set as AbstractSet
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, final

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import as_whole, shown
from iris.patterns.state.entries import (
    COUNTER,
    MAX_COUNT,
    SET,
    VALUE,
    WRITERS,
    Entry,
    by_dot,
    check_key,
    read_added,
    read_element,
    read_value,
    write_element,
    write_value,
)
from iris.patterns.state.replica import Replica

_MOST: Final = WRITERS * MAX_COUNT
"""Sum that all writers can have added at most."""
_MISSING: Final = object()


@final
class SharedCounter:
    """A number that members add to: what each has added counts, whatever happens at the same time.

    What one member adds together has 53 bits.
    """

    __slots__ = ("_group", "_name", "_replica")

    def __init__(self, replica: Replica, map_name: str, name: str) -> None:
        self._replica = replica
        self._group: Final = (COUNTER, map_name, "")
        self._name: Final = check_key(name, "name")

    def __repr__(self) -> str:
        return f"<SharedCounter {self.value}>"

    def __int__(self) -> int:
        return self.value

    @property
    def value(self) -> int:
        """Sum of what all members have added; 0 at first.  It has 64 bits, whatever a member forges."""
        total = sum(read_added(entry).total for entry in self._replica.contents.at(self._group, self._name))
        return min(max(total, -_MOST), _MOST)

    def add(self, number: int = 1) -> None:
        """Add a whole number, which may be negative.

        Raises:
            ConfigError: it is no whole number, or what this member has added together leaves 53 bits.
            Overloaded: the document is full.
        """
        added = as_whole(number)
        with suppress(OverflowError):
            if added is not None and abs(added) <= MAX_COUNT:
                self._replica.add(self._group, self._name, added)
                return
        raise ConfigError(f"a counter does not take {shown(number)}: use whole numbers, of 53 bits together")


@final
class SharedSet(MutableSet[Any]):
    """A set of values.  An element that one member adds while another one discards it stays.

    Elements are None, bool, int (64 bits), float and str, and tuples of these, 16 deep at most; as JSON 1,024 bytes at
    most.
    """

    __slots__ = ("_group", "_replica")

    def __init__(self, replica: Replica, map_name: str, name: str) -> None:
        self._replica = replica
        self._group: Final = (SET, map_name, check_key(name, "name"))

    def __repr__(self) -> str:
        return f"<SharedSet of {len(self)}>"

    def add(self, value: object) -> None:
        """Put an element in; it may be there already.

        Raises:
            ConfigError: a set does not hold it.
            Overloaded: the document is full.
        """
        self._replica.write(self._group, write_element(value), b"")

    def discard(self, value: object) -> None:
        """Remove an element, if it is there."""
        self._replica.remove(self._group, write_element(value))

    def remove(self, value: object) -> None:
        """Remove an element; raise KeyError if it is not there."""
        try:
            is_there = self._replica.remove(self._group, write_element(value))
        except ConfigError:
            is_there = False
        if not is_there:
            raise KeyError(value)

    def clear(self) -> None:
        """Take all elements out.  The mix-in would sort them anew for each."""
        self._replica.clear(self._group)

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> AbstractSet[Any]:
        """Return what an operator such as ``&`` makes: a plain set."""
        return set(it)

    def __contains__(self, value: object) -> bool:
        try:
            return self._replica.contents.has(self._group, write_element(value))
        except ConfigError:
            return False

    def __iter__(self) -> Iterator[Any]:
        return map(read_element, self._replica.contents.keys(self._group))

    def __len__(self) -> int:
        return self._replica.contents.count(self._group)


def value_of(entries: Collection[Entry]) -> Any:
    """Return what counts of the values that were written to a key at the same time."""
    return read_value(max(entries, key=by_dot).payload)


class SharedMap(MutableMapping[str, Any]):
    """A map from text to values.  Of two writes to one key at the same time one counts, the same at all members.

    A key that one member sets while another one deletes it stays.  The map is iterated over in the order of its keys.

    Keys have 1 to 1,024 bytes.  Values are None, bool, int (64 bits), float, str, bytes, and lists and dicts of these,
    16 deep and 256 KiB at most.  Raises ConfigError for others, and Overloaded when the document is full.  What is read
    is a copy.
    """

    def __init__(self, replica: Replica, name: str) -> None:
        self._replica: Final = replica
        self._map: Final = name
        self._group: Final = (VALUE, name, "")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._map!r} of {len(self)}>"

    def counter(self, name: str) -> SharedCounter:
        """Return the counter of a name in this map: every name has one, which is 0 at first."""
        return SharedCounter(self._replica, self._map, name)

    def set(self, name: str) -> SharedSet:
        """Return the set of a name in this map."""
        return SharedSet(self._replica, self._map, name)

    def __getitem__(self, key: str) -> Any:
        entries = self._replica.contents.at(self._group, key)
        if not entries:
            raise KeyError(key)
        return value_of(entries)

    def __setitem__(self, key: str, value: object) -> None:
        self._replica.write(self._group, check_key(key), write_value(value))

    def __delitem__(self, key: str) -> None:
        if not self._replica.remove(self._group, key):
            raise KeyError(key)

    def pop(self, key: str, default: Any = _MISSING) -> Any:
        """Delete a key and return its value; if it is not there, return the default, or raise KeyError."""
        value = self.get(key, default)
        if not self._replica.remove(self._group, key) and value is _MISSING:
            raise KeyError(key)
        return value

    def update(self, other: Mapping[str, object] = MappingProxyType({}), /, **values: object) -> None:  # type: ignore[override]
        """Set several keys, as one change: others see all of it or nothing.  If it raises, nothing is changed."""
        payloads = {check_key(key): write_value(value) for key, value in {**other, **values}.items()}
        self._replica.update(self._group, payloads)

    def clear(self) -> None:
        """Delete all keys.  The mix-in would sort them anew for each."""
        self._replica.clear(self._group)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._replica.contents.has(self._group, key)

    def __iter__(self) -> Iterator[str]:
        keys = self._replica.contents.keys(self._group)
        return (key for key in keys if key in self)  # another member may remove some while this one loops

    def __len__(self) -> int:
        return self._replica.contents.count(self._group)
