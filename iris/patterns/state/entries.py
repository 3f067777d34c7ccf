"""Entries of a document: what one write leaves, how it goes over the wire, and the check of what others send.

An entry stands by itself: whether it can be read depends on no other one.  So every document that is made of checked
entries can be read, whatever was sent in which order.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeVar, final

import msgspec
from msgspec import Meta, Struct

from iris.kernel.config import KIB
from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.shapes import is_list, is_tuple
from iris.kernel.wire import MAX_CONTAINERS

_T = TypeVar("_T")

VALUE: Final = 0
COUNTER: Final = 1
SET: Final = 2

Kind = Literal["value", "counter", "set", "map"]
Group = tuple[int, str, str]
"""Kind, map and, for elements, set of the entries that are read together.  The document itself is the map ''."""

WRITERS: Final = 1024
"""Numbers of writers.  Their number is fixed, so that no member has to refuse a writer that another one knows."""
BUCKETS: Final = 256
"""Parts of a document that are compared by a digest each."""
MAX_KEY: Final = 1024
"""Size limit of a key, a name, or an element of a set as JSON, in bytes."""
MAX_VALUE: Final = 256 * KIB
"""Size limit of a value as msgpack, in bytes."""
MAX_DEPTH: Final = 16
"""Lists and dicts within each other."""
MAX_PARTS: Final = MAX_CONTAINERS - 16
"""Lists and dicts in a value: programs are told of it within a few more."""
MAX_COUNT: Final = 2**53
"""Bound of what one writer has added to a counter."""
OVERHEAD: Final = 128
"""Size that an entry counts beside its names and its value, in bytes."""
AT_A_TIME: Final = 2048
"""Entries in one message, or dots of removed ones: some ms of checks and merging, whatever their size."""

_LEAST: Final = -(2**63)
_MOST: Final = 2**64
"""Bounds of an int, as msgpack has them: programs could not be told of others."""
_SMALL: Final = 4 * KIB
_LEAVES: Final = frozenset({type(None), bool, int, float, str, bytes})
_json: Final = json.JSONEncoder(ensure_ascii=False).encode
_Writer = Annotated[int, Meta(ge=0, lt=WRITERS)]
_Count = Annotated[int, Meta(ge=0, lt=2**53)]
_Name = Annotated[str, Meta(max_length=MAX_KEY)]

Vector = dict[_Writer, _Count]
"""Version vector: number of known writes, by writer."""


@final
class Entry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Entry of a document: the value, counter or element that one write has left."""

    dot: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """The write: its number among those of its writer, times 1,024, plus the writer."""
    kind: Annotated[int, Meta(ge=VALUE, le=SET)]
    map: _Name
    """The map that the entry belongs to; empty: the document itself."""
    name: _Name
    """The set that the entry is an element of; empty for values and counters."""
    key: _Name
    """Key of a value, name of a counter, or an element of a set as JSON."""
    payload: Annotated[bytes, Meta(max_length=MAX_VALUE)]
    """The value as msgpack; of a counter what its writer has added, as ``Added``; else empty."""

    @property
    def group(self) -> Group:
        """Group of entries that this one is read with."""
        return (self.kind, self.map, self.name)

    @property
    def size(self) -> int:
        """Size that the entry counts, in bytes."""
        names = self.map + self.name + self.key
        return OVERHEAD + len(names if names.isascii() else names.encode()) + len(self.payload)

    @property
    def shown(self) -> tuple[Kind, str]:
        """Kind and name under which a watcher sees a change of the entry."""
        if self.map:
            return "map", self.map
        if self.kind == SET:
            return "set", self.name
        return ("value" if self.kind == VALUE else "counter"), self.key


@final
class Edit(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All changes of a writer since its last edit, merged as one."""

    writer: _Writer
    first: _Count
    """Number of its first write."""
    count: _Count
    """Number of its writes. 0: the edit is only announced, and to be fetched."""
    needs: Vector
    """Writes that have to be merged before it: those that its writer had seen."""
    added: Annotated[list[Entry], Meta(max_length=AT_A_TIME)]
    removed: Annotated[list[Annotated[int, Meta(ge=0, le=2**63 - 1)]], Meta(max_length=AT_A_TIME)]
    """Dots of entries that were removed or overwritten."""


_Sum = Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)]
_Start = Annotated[int, Meta(ge=0, lt=2**53)]


@final
class Added(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Sum that was added to a counter with one writer's number, by all members that have used the number."""

    total: _Sum
    start: _Start
    """Random number of the member that uses the writer's number now."""
    own: _Sum
    """Share of the total that this member has added."""
    former_start: _Start
    """Random number of the member that used the writer's number before."""
    former_own: _Sum
    """Share of the total that the former member had added when it was seen last."""

    def share_of(self, start: int) -> int:
        """Return the share of a member that uses the number, or used it before."""
        return self.own if start == self.start else self.former_own if start == self.former_start else 0


_added: Final = msgspec.msgpack.Decoder(Added)
_values: Final = msgspec.msgpack.Decoder()
encode: Final = msgspec.msgpack.Encoder().encode
by_dot: Final = attrgetter("dot")
"""The order of writes of one writer."""


def dot_of(writer: int, number: int) -> int:
    """Return the dot of one write of a writer."""
    return number * WRITERS + writer


def read_untrusted(data: object, kind: type[_T], what: str) -> _T:
    """Read what a member sent, or a copy on disk has; raise RemoteProtocolError if it is malformed."""
    try:
        if isinstance(data, bytes):
            return msgspec.msgpack.decode(data, type=kind)
        error: Exception = TypeError("it is no bytes")
    except (msgspec.MsgspecError, UnicodeDecodeError) as reason:
        error = reason
    raise RemoteProtocolError(f"{what} is malformed: {error}")


def read_edit_untrusted(data: object) -> Edit:
    """Read an edit of another member; raise RemoteProtocolError if it is malformed."""
    edit = read_untrusted(data, Edit, "an edit")
    check_entries_untrusted(edit.added)
    for entry in edit.added:
        number, writer = divmod(entry.dot, WRITERS)
        if writer != edit.writer or not edit.first <= number < edit.first + edit.count:
            raise RemoteProtocolError("an edit adds what is not its writer's")
    if edit.count and not edit.first:
        raise RemoteProtocolError("the writes of a writer begin with 1")
    return edit


def check_entries_untrusted(entries: Iterable[Entry]) -> None:
    """Raise RemoteProtocolError unless everybody can read these entries."""
    try:
        for entry in entries:
            if entry.map:
                check_key(entry.map)
            check_key(entry.name if entry.kind == SET else entry.key)
            if entry.kind == VALUE:
                value = read_value(entry.payload)
                if type(value) not in _LEAVES:
                    check_plain(value)
            elif entry.kind == COUNTER:
                read_added(entry)
            elif write_element(read_element(entry.key)) != entry.key or entry.payload:
                raise ValueError("an element of a set is not written as its members write it")
            if entry.kind != SET and entry.name:
                raise ValueError("only elements belong to a set")
    except (ConfigError, ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise RemoteProtocolError(f"an entry is malformed: {error}") from None


# -- values ----------------------------------------------------------------------------------------------------


def write_value(value: object) -> bytes:
    """Return a value as it is kept; raise ConfigError if a document cannot hold it."""
    try:
        check_plain(value)
        data = encode(value)
    except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"a document does not hold {value!r:.100}: {error}") from None
    if len(data) > MAX_VALUE:
        raise ConfigError(f"a value has {len(data)} bytes: a document holds values of {MAX_VALUE} bytes at most")
    return data


def read_value(data: bytes) -> object:
    """Return the value of an entry.

    Many lists have the garbage collector look at all of them again and again, ten times as long as reading them takes.
    """
    if len(data) <= _SMALL or not gc.isenabled():
        return _values.decode(data)
    gc.disable()
    try:
        return _values.decode(data)
    finally:
        gc.enable()


def check_plain(value: object) -> None:
    """Raise ConfigError unless a document can hold a value; looks level by level, at the speed of C."""
    level: list[object] = [value]
    containers = 0
    for _ in range(MAX_DEPTH + 1):
        kinds = set(map(type, level))
        if kinds <= _LEAVES:
            return
        if wrong := kinds - _LEAVES - {list, tuple, dict}:
            culprit = next(one for one in level if type(one) in wrong)
            raise ConfigError(
                f"a document does not hold {culprit!r:.100}: "
                "use None, bool, int, float, str, bytes, lists and dicts of these"
            )
        lists: list[Any] = level if kinds <= {list, tuple} else [one for one in level if type(one) in (list, tuple)]
        dicts: list[Any] = [one for one in level if type(one) is dict] if dict in kinds else []
        parts = sum(map(len, lists)) + sum(map(len, dicts))
        if parts > MAX_VALUE:  # before anything goes through them: one list may be there a thousand times
            raise ConfigError(f"a value has {parts} bytes: a document holds values of {MAX_VALUE} bytes at most")
        if set(map(type, chain.from_iterable(dicts))) - {str}:
            raise ConfigError("a document does not hold dicts with such keys: use str")
        containers += len(lists) + len(dicts)
        if containers > MAX_PARTS:
            raise ConfigError(f"a value has more than {MAX_PARTS} lists and dicts: use several keys")
        level = list(chain(chain.from_iterable(lists), chain.from_iterable(one.values() for one in dicts)))
    raise ConfigError(f"a value is nested deeper than {MAX_DEPTH}: use several keys")


def read_added(entry: Entry) -> Added:
    """Return what a writer has added to a counter; raise MsgspecError if the entry is none."""
    return _added.decode(entry.payload)


def write_element(value: object) -> str:
    """Return an element of a set as it is kept, as JSON; raise ConfigError if a set cannot hold it."""
    return check_key(_json(_element(value)), "element, as JSON,")


def read_element(key: str) -> object:
    """Return an element of a set; raise ValueError if it is no JSON."""
    return as_element(json.loads(key))


def _element(value: object, depth: int = 0) -> object:
    """Return an element in the one form that it has in a set: numbers that are equal to Python are one."""
    if is_tuple(value):
        if depth >= MAX_DEPTH:
            raise ConfigError(f"a value is nested deeper than {MAX_DEPTH}: use several keys")
        return [_element(one, depth + 1) for one in value]
    if isinstance(value, float) and value.is_integer() and _LEAST <= value < _MOST:
        return int(value)
    if isinstance(value, int) and not _LEAST <= value < _MOST:
        raise ConfigError(f"a set in a document does not hold {value!r:.100}: use ints of 64 bits")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"a set in a document does not hold {value!r:.100}: use None, bool, int, float, str and tuples of these"
    )


def as_element(value: object) -> object:
    """Return an element as a set has it: what are lists elsewhere are tuples."""
    return tuple(map(as_element, value)) if is_list(value) or is_tuple(value) else value


def check_key(key: object, what: str = "key") -> str:
    """Return a key, an element of a set or a name; raise ConfigError if it is none."""
    try:
        if isinstance(key, str) and 1 <= len(key if key.isascii() else key.encode()) <= MAX_KEY:
            return key
    except UnicodeEncodeError:  # half of a character
        pass
    raise ConfigError(f"the {what} {key!r:.100} is no text of 1 to {MAX_KEY} bytes")
