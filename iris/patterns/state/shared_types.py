"""Shared types of a document: counter, set, map, list and text.  Plain objects without a task or a wait.

What each method changes is changed here at once and on its way to the other members, who see it in the order of this
member.  ``SharedState.edit`` makes several changes one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from types import MappingProxyType
from typing import Any, Final, cast, final, overload

from iris.kernel.errors import ConfigError
from iris.patterns.state.replica import MAX_DEPTH, Replica, check_document_key, check_value, plain

_OVERHEAD: Final = 64
"""Bytes that an entry has in the document beside its key and value, at most."""


@final
class SharedCounter:
    """A number that members add to: what each has added counts, whatever happens at the same time.

    64 bits; what it holds together is exact up to 2**53.
    """

    __slots__ = ("_replica", "_root")

    def __init__(self, replica: Replica, name: str) -> None:
        self._replica = replica
        self._root = replica.root(f"counter/{name}")

    def __repr__(self) -> str:
        return f"<SharedCounter {self.value}>"

    def __int__(self) -> int:
        return self.value

    @property
    def value(self) -> int:
        """What all members have added together."""
        return sum(map(_whole, self._root.to_py().values()))

    def add(self, number: int = 1) -> None:
        """Add a whole number, which may be negative.

        Raises:
            ConfigError: it is no whole number, or what this member has added together leaves 53 bits.
            Overloaded: the document is full.
        """
        key = str(self._replica.number)
        total = _whole(self._root.get(key))
        if isinstance(number, bool) or not isinstance(number, int) or abs(total + number) > 2**53:
            raise ConfigError(f"a counter does not take {number!r}: use whole numbers, of 53 bits together")
        with self._replica.edit(_OVERHEAD):
            self._root[key] = total + number


def _whole(value: object) -> int:
    """Return what a member has added; 0 for what no member writes."""
    number = plain(value)
    return number if isinstance(number, int) and abs(number) <= 2**53 else 0


@final
class SharedMap(MutableMapping[str, Any]):
    """A map from text to values.  Of two writes to one key at the same time one counts, the same at all members.

    It is iterated over in the order of its keys.

    Keys have 1 to 1,024 bytes.  Values are None, bool, int (64 bits), float, str, bytes, and lists and dicts of these,
    16 deep at most; a float that is a whole number comes back as an int.  Raises ConfigError for others, and Overloaded
    when the document is full.
    """

    __slots__ = ("_name", "_replica", "_root")

    def __init__(self, replica: Replica, root: str) -> None:
        self._replica = replica
        self._name = root
        self._root = replica.root(root)

    def __repr__(self) -> str:
        return f"<SharedMap of {len(self)}>"

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return plain(self._root[key])

    def __setitem__(self, key: str, value: object) -> None:
        made, size = check_value(value)
        size += len(check_document_key(key).encode()) + _OVERHEAD
        if key not in self:
            self._replica.add_key(self._name)
        with self._replica.edit(size):
            self._root[key] = made

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        with self._replica.edit():
            del self._root[key]

    def update(self, other: Mapping[str, object] = MappingProxyType({}), /, **values: object) -> None:  # type: ignore[override]
        """Set several keys, as one change: others see all of it or nothing."""
        with self._replica.edit():
            for key, value in {**other, **values}.items():
                self[key] = value

    def __contains__(self, key: object) -> bool:
        try:
            return isinstance(key, str) and key in self._root
        except UnicodeEncodeError:  # half of a character, which no key has
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._root.keys()))  # the library's order differs from member to member

    def __len__(self) -> int:
        return len(self._root)


@final
class SharedSet(MutableSet[Any]):
    """A set of values.  Of an ``add`` and a ``discard`` of one element at the same time one counts, the same for all.

    Elements are None, bool, int, float and str, and tuples of these, 16 deep at most; as JSON 1,024 bytes at most.
    """

    __slots__ = ("_name", "_replica", "_root")

    def __init__(self, replica: Replica, name: str) -> None:
        self._replica = replica
        self._name = f"set/{name}"
        self._root = replica.root(self._name)

    def __repr__(self) -> str:
        return f"<SharedSet of {len(self)}>"

    def add(self, value: object) -> None:
        """Put an element in; it may be there already."""
        key = _element(value)
        if key in self._root:
            return
        self._replica.add_key(self._name)
        with self._replica.edit(len(key.encode()) + _OVERHEAD):
            self._root[key] = True

    def discard(self, value: object) -> None:
        """Take an element out, if it is there."""
        key = _element(value)
        if key in self._root:
            with self._replica.edit():
                del self._root[key]

    def __contains__(self, value: object) -> bool:
        try:
            return _element(value) in self._root
        except ConfigError:
            return False

    def __iter__(self) -> Iterator[Any]:
        return iter([_value_of(key) for key in self._root.keys()])  # noqa: SIM118 -- no dict

    def __len__(self) -> int:
        return len(self._root)


def _element(value: object) -> str:
    if not _is_element(value):
        raise ConfigError(
            f"a set in a document does not hold {value!r:.100}: use None, bool, int, float, str and tuples of these"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # equal to Python, and so one element
    return check_document_key(json.dumps(value, ensure_ascii=False), "element, as JSON,")


def _is_element(value: object, depth: int = 0) -> bool:
    if isinstance(value, tuple):
        if depth >= MAX_DEPTH:
            raise ConfigError(f"a value is nested deeper than {MAX_DEPTH}: use several keys")
        return all(_is_element(one, depth + 1) for one in cast("tuple[object, ...]", value))
    return value is None or isinstance(value, bool | int | float | str)


def _value_of(key: str) -> Any:
    try:
        return _tuples(json.loads(key))
    except (ValueError, RecursionError):  # that a program in a browser has put there
        return key


def _tuples(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return tuple(map(_tuples, cast("list[object]", value)))


@final
class SharedList(MutableSequence[Any]):
    """A list of values as in ``SharedMap``.  What is inserted at the same time stands side by side, the same for all.

    Setting an item deletes it and inserts another one.
    """

    __slots__ = ("_replica", "_root")

    def __init__(self, replica: Replica, name: str) -> None:
        self._replica = replica
        self._root = replica.root(f"list/{name}")

    def __repr__(self) -> str:
        return f"<SharedList of {len(self)}>"

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return plain(self._root.to_py() or [])[index]
        return plain(self._root[self._position(index)])

    def __setitem__(self, index: int | slice, value: Any) -> None:
        made, size = check_value(value)
        at = self._position(index)
        with self._replica.edit(size + _OVERHEAD):
            del self._root[at]
            self._root.insert(at, made)

    def __delitem__(self, index: int | slice) -> None:
        at = self._position(index)
        with self._replica.edit():
            del self._root[at]

    def _position(self, index: object) -> int:
        if isinstance(index, bool) or not isinstance(index, int):
            raise ConfigError(f"the index is {index!r}: use one whole number in a list of a document")
        length = len(self)
        if not -length <= index < length:
            raise IndexError(f"the list has {length} items")
        return index % length

    def insert(self, index: int, value: Any) -> None:
        """Insert a value before an index, as Python's lists do."""
        made, size = check_value(value)
        length = len(self)
        with self._replica.edit(size + _OVERHEAD):
            self._root.insert(min(max(index + length if index < 0 else index, 0), length), made)

    def extend(self, values: Iterable[Any]) -> None:
        """Append several values in one step."""
        made = [check_value(value) for value in values]
        if made:
            with self._replica.edit(sum(size + _OVERHEAD for _, size in made)):
                self._root.extend([value for value, _ in made])

    def __len__(self) -> int:
        return len(self._root)


@final
class SharedText:
    """A text that several write at a time: what each inserts stays, and together.

    Indices count characters, as in a ``str``.
    """

    __slots__ = ("_replica", "_root")

    def __init__(self, replica: Replica, name: str) -> None:
        self._replica = replica
        self._root = replica.root(f"text/{name}")

    def __repr__(self) -> str:
        return f"<SharedText {str(self)!r:.60}>"

    def __str__(self) -> str:
        return str(self._root)

    def __len__(self) -> int:
        return len(str(self))

    def __getitem__(self, index: int | slice) -> str:
        return str(self)[index]

    def insert(self, index: int, text: str) -> None:
        """Insert a text before an index.

        Raises:
            ConfigError: it is no text.
            IndexError: the index is not from 0 to the length.
            Overloaded: the document is full.
        """
        _, size = check_value(_text(text))
        at = self._offset(str(self), index)
        if text:
            with self._replica.edit(size + _OVERHEAD):
                self._root.insert(at, text)

    def append(self, text: str) -> None:
        """Insert a text at the end."""
        self.insert(len(self), text)

    def delete(self, start: int, end: int) -> None:
        """Delete the characters from one index to before another.

        Raises:
            IndexError: they are not from 0 to the length.
        """
        now = str(self)
        first, last = self._offset(now, start), self._offset(now, end)
        if first < last:
            with self._replica.edit():
                del self._root[first:last]

    @staticmethod
    def _offset(text: str, index: int) -> int:
        """Return how many bytes come before an index: the library counts those."""
        if not 0 <= index <= len(text):
            raise IndexError(f"the text has {len(text)} characters: {index} is not among them")
        return len(text[:index].encode())


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"a text does not take {value!r:.100}: use a str")
    return value
