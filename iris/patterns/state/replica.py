"""Replica: one copy of a document.  Takes edits and the updates of other replicas, says what has changed.  Sans-IO.

The document is a Yjs document, kept by ``pycrdt``.  Replicas that have taken the same updates are equal, whatever the
order and however often.  Nothing here looks at a clock: of two writes to a key the one that had seen the other counts,
and of two that had not, the same one everywhere.

Yjs's vector counts what was written, and not what was deleted.  An edit that only deletes therefore also counts up in
the map ``deletions``: two replicas with equal vectors are equal, and a vector says all that a replica has seen.

Names of the shared types, for programs that join with Yjs: the map ``values`` has the registers; a counter, set, map,
list or text NAME is ``counter/NAME`` (a map from replica to what it has added), ``set/NAME`` (a map from element to
true), ``map/NAME``, ``list/NAME`` and ``text/NAME``.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, cast, final

from iris.kernel.config import KIB
from iris.kernel.errors import ConfigError, Overloaded, RemoteProtocolError
from iris.patterns.state.updates import (
    EMPTY,
    MissingUpdates,
    UpdateExtent,
    read_update_untrusted,
    read_vector_untrusted,
    write_vector,
)

if TYPE_CHECKING:
    import pycrdt

Kind = Literal["value", "counter", "set", "map", "list", "text"]

VALUES: Final = "values"
DELETIONS: Final = "deletions"
_TYPES: Final[Mapping[str, str]] = {
    VALUES: "Map",
    DELETIONS: "Map",
    "counter": "Map",
    "set": "Map",
    "map": "Map",
    "list": "Array",
    "text": "Text",
}
"""By the beginning of a shared type's name, how the library calls it."""

MAX_KEY: Final = 1024
"""Bytes of a key, an element of a set, or the name of a shared type."""
MAX_DEPTH: Final = 16
_EXACT: Final = 2**53
_READ_AGAIN: Final = 64 * KIB
"""Bytes of updates up to which it is quicker to read what they count than the document's whole vector."""
_TOLERANCE: Final = 2
"""Others may fill a document to twice its bound: each keeps to it, but several may write at once."""


@final
class Replica:
    """One copy of a document.

    Args:
        number: of this replica, random, below 2**53: no two replicas may have the same.
        max_keys: in each map and set of the document.
        max_bytes: of the document, as it is sent to a replica that has nothing.

    Raises:
        ConfigError: the library is not installed.
    """

    def __init__(self, number: int, *, max_keys: int, max_bytes: int) -> None:
        self.number: Final = number
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._library = _library()
        self.doc: Final[pycrdt.Doc[Any]] = self._library.Doc(client_id=number)
        self._roots: dict[str, Any] = {}
        self._observed: set[str] = set()
        self.on_change: Callable[[Kind, str], None] | None = None
        """Called with each key of a register, and the name of each other shared type, that was changed."""
        self.check_open: Callable[[], None] | None = None
        """Called before each edit: raises an error if there may be none."""
        self.on_edit: Callable[[], None] | None = None
        """Called when there is something to send to others."""
        self.vector: dict[int, int] = {}
        """By replica: how many units of what it has written are here."""
        self._seen: dict[int, int] = {}
        """What of the vector has come from others since this replica's last change was taken."""
        self._relayed: dict[int, int] = {}
        """What the next change passes on: those after it build on that, as it may be lost."""
        self._unsent: list[bytes] = []
        self._uncounted: list[bytes] = []
        """Updates that the vector does not count yet."""
        self._size = 0
        """Bytes of the document: as last measured, and those of all updates since."""
        self._keys: dict[str, int] = {}
        """By map: its keys when it was counted, and those added here since."""
        self._taken = 0
        """Units that others have written since: they are this many keys at most."""
        self._applying = False
        self.doc.observe(self._note_update)
        self.root(VALUES)

    # -- what is in it --------------------------------------------------------------------------------------

    def root(self, name: str) -> Any:
        """Return a shared type by its whole name."""
        found = self._roots.get(name)
        if found is None:
            found = self._roots[name] = self.doc.get(name, type=getattr(self._library, _TYPES[name.partition("/")[0]]))
        return found

    @property
    def has_written(self) -> bool:
        """Whether this replica has written anything."""
        return self.number in self.vector

    @property
    def size(self) -> int:
        """Bytes of the document, at most."""
        return self._size

    def digest(self) -> bytes:
        """Return 16 bytes that are equal for equal documents."""
        return hashlib.blake2b(write_vector(self.vector), digest_size=16).digest()

    def covers(self, vector: Mapping[int, int]) -> bool:
        """Tell whether everything is here that a vector counts."""
        return all(self.vector.get(replica, 0) >= clock for replica, clock in vector.items())

    # -- edits ----------------------------------------------------------------------------------------------

    @contextmanager
    def edit(self, size: int = 0) -> Iterator[None]:
        """Make several edits one: others see all of them or none.

        Args:
            size: bytes that they add, at most.

        Raises:
            Overloaded: the document would become larger than its bound; nothing was changed.
        """
        if self.check_open is not None:
            self.check_open()
        self.check_room(size)
        try:
            with self.doc.transaction():
                yield
        finally:
            self._finish_edit()

    def _finish_edit(self) -> None:
        edited = bool(self._uncounted)
        if not self._refresh() and edited:
            self._mark_deletion()
            self._refresh()
        if self._unsent and self.on_edit is not None:
            self.on_edit()

    def _mark_deletion(self) -> None:
        """Write something, so that others can tell a document after this edit from one before it."""
        marks, key = self.root(DELETIONS), str(self.number)
        marks[key] = int(marks.get(key) or 0) + 1

    def add_key(self, root: str) -> None:
        """Make sure that a map or set may have one key more.

        Raises:
            Overloaded: it may not.
        """
        # The library goes through a map to count it, so it is counted once, and again where it may have become full.
        keys = self._keys.get(root, self._max_keys)
        if keys + self._taken >= self._max_keys:
            self._keys = {name: count + self._taken for name, count in self._keys.items()}
            self._taken = 0
            keys = len(self.root(root))
            if keys >= self._max_keys:
                raise Overloaded(f"there are {keys} keys, which is the limit: delete some, or give max_keys")
        self._keys[root] = keys + 1

    def check_room(self, size: int) -> None:
        """Make sure that the document may become so many bytes larger.

        Raises:
            Overloaded: it may not.
        """
        if size and not self._has_room(size, self._max_bytes):
            raise Overloaded(
                f"the document has {self._size} bytes, and {size} more would exceed its limit of {self._max_bytes}: "
                "delete something, or give max_bytes"
            )

    def _has_room(self, size: int, limit: int) -> bool:
        if self._size + size > limit:
            self._size = len(self.doc.get_update())
        return self._size + size <= limit

    def take_edits(self) -> tuple[bytes, bytes] | None:
        """Return what was edited since the last call, or None: the vector it builds on, and an update."""
        if not self._unsent:
            return None
        needs, self._seen, self._relayed = write_vector(self._seen), self._relayed, {}
        updates, self._unsent = self._unsent, []
        return needs, updates[0] if len(updates) == 1 else self._library.merge_updates(*updates)

    # -- updates of others ----------------------------------------------------------------------------------

    def difference(self, vector: bytes) -> bytes:
        """Return an update with all that is here and not in a document that has ``vector``, which was checked."""
        return self.doc.get_update(vector or b"\x00")

    def extent_untrusted(self, update: bytes) -> UpdateExtent:
        """Read an update, without a look at this document: may be called in another thread.

        Raises:
            RemoteProtocolError: it is malformed or too large.
        """
        if len(update) > _TOLERANCE * self._max_bytes:
            raise RemoteProtocolError(f"an update of a document has {len(update)} bytes: it may have {self._max_bytes}")
        return read_update_untrusted(update)

    def apply(self, update: bytes, extent: UpdateExtent, *, relay: bool = False) -> bool:
        """Take an update of another replica; return whether it brought anything.

        Args:
            update: the update.
            extent: what is in it.
            relay: this replica passes it on to the others as an edit of its own: it comes from a program that only
                this one is connected to.

        Raises:
            MissingUpdates: others have to come first; nothing was changed.
            RemoteProtocolError: it claims to be by this replica, the document would become too large, or the library
                cannot read it.
        """
        extent.check(self.vector)
        own = extent.blocks.get(self.number)
        if own is not None and own[1] > self.vector.get(self.number, 0):
            raise RemoteProtocolError("an update of a document holds what this replica has not written in its name")
        if all(end <= self.vector.get(replica, 0) for replica, (_, end) in extent.blocks.items()) and not (
            relay and extent.deletes
        ):
            return False  # the deletions in it are here, too, as they count in the vector of who made it
        if not self._has_room(len(update), _TOLERANCE * self._max_bytes):
            raise RemoteProtocolError(f"a document would become larger than {_TOLERANCE * self._max_bytes} bytes")
        known = self.vector
        self._taken += sum(end - max(start, known.get(replica, 0)) for replica, (start, end) in extent.blocks.items())
        self._applying = not relay
        try:
            self.doc.apply_update(update)
        except (ValueError, RuntimeError) as error:  # the library reads JSON more strictly, for one
            raise RemoteProtocolError(f"an update of a document is malformed: {error}") from None
        finally:
            self._applying = False
        if relay:
            self._relayed |= {replica: end for replica, (_, end) in extent.blocks.items()}
            self._finish_edit()
        else:
            self._refresh()
            self._seen |= {replica: self.vector.get(replica, 0) for replica in extent.blocks}
        return True

    def load(self, update: bytes) -> None:
        """Begin with a document that this program has kept.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        self.apply(update, self.extent_untrusted(update))
        self._seen.clear()

    def _note_update(self, event: pycrdt.TransactionEvent) -> None:
        update = event.update
        if update == EMPTY:
            return
        self._size += len(update)
        self._uncounted.append(update)
        if not self._applying:
            self._unsent.append(update)

    def _refresh(self) -> bool:
        """Count what has come; return whether it was more than deletions.

        Small updates are read by themselves: with 100,000 writers, those that are long gone included, a look at the
        whole vector takes 200 ms.
        """
        updates, self._uncounted = self._uncounted, []
        if sum(map(len, updates)) > _READ_AGAIN:
            known, self.vector = self.vector, read_vector_untrusted(self.doc.get_state())
            wrote = self.vector != known
        else:
            clocks = {r: end for update in updates for r, (_, end) in read_update_untrusted(update).blocks.items()}
            self.vector |= clocks
            wrote = bool(clocks)
        if self.on_change is not None:
            self._observe_all()
        return wrote

    # -- changes --------------------------------------------------------------------------------------------

    def follow(self, on_change: Callable[[Kind, str], None]) -> None:
        """Have each change reported from now on."""
        self.on_change = on_change
        self._observe_all()

    def names(self) -> list[tuple[Kind, str]]:
        """Return the kind and name of every shared type that is in use, but for the registers."""
        found: list[tuple[Kind, str]] = []
        for root in sorted(self.doc.keys()):
            kind, slash, name = root.partition("/")
            if slash and kind in _TYPES:
                found.append((cast("Kind", kind), name))
        return found

    def _observe_all(self) -> None:
        for kind, name in self.names():
            root = f"{kind}/{name}"
            if root not in self._observed:
                self._observed.add(root)
                self.root(root).observe(self._reporter(kind, name))
                self._report(kind, name)
        if VALUES not in self._observed:
            self._observed.add(VALUES)
            self.root(VALUES).observe(self._note_values)

    def _reporter(self, kind: Kind, name: str) -> Callable[[object], None]:
        def report(_: object) -> None:
            self._report(kind, name)

        return report

    def _note_values(self, event: Any) -> None:
        for key in event.keys:
            self._report("value", key)

    def _report(self, kind: Kind, name: str) -> None:
        if self.on_change is not None:
            self.on_change(kind, name)


def _library() -> ModuleType:
    """Load the library of documents: few programs use it, and it takes 50 ms."""
    try:
        return importlib.import_module("pycrdt")
    except ModuleNotFoundError:
        raise ConfigError("documents need pycrdt: pip install 'iris-mesh[state]'") from None


def plain(value: Any) -> Any:
    """Return a value of the document as Python has it: whole numbers, which Yjs does not tell from others, are int."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _EXACT else value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [plain(one) for one in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in cast("dict[str, Any]", value).items()}
    return value


def check_value(value: object, depth: int = 0) -> tuple[Any, int]:
    """Return a value as the document takes it, and about how many bytes it has there.

    Raises:
        ConfigError: a document cannot hold it.
    """
    if value is None or isinstance(value, bool | float):
        return value, 10
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ConfigError(f"{value} does not fit into a document: use whole numbers of 64 bits")
        return value, 10
    if isinstance(value, str):
        return value, _size_of(value) + 4
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(cast("bytes", value))
        return data, len(data) + 4
    if depth >= MAX_DEPTH:
        raise ConfigError(f"a value is nested deeper than {MAX_DEPTH}: use several keys")
    if isinstance(value, list | tuple):
        pairs = [check_value(one, depth + 1) for one in cast("list[object]", value)]
        return [one for one, _ in pairs], sum(size for _, size in pairs) + 4
    if isinstance(value, dict):
        made: dict[str, Any] = {}
        total = 4
        for key, one in cast("dict[object, object]", value).items():
            if not isinstance(key, str):
                raise ConfigError(f"a key is {key!r}: use text for the keys of a map in a document")
            made[key], size = check_value(one, depth + 1)
            total += size + _size_of(key) + 4
        return made, total
    raise ConfigError(
        f"a document does not hold a {type(value).__name__}: use None, bool, int, float, str, bytes, lists or dicts"
    )


def check_document_key(key: object, what: str = "key") -> str:
    """Return a key of a document.

    Raises:
        ConfigError: it is no text of 1 to ``MAX_KEY`` bytes.
    """
    if not isinstance(key, str) or not 0 < _size_of(key) <= MAX_KEY:
        raise ConfigError(f"the {what} is {key!r:.100}: use a text of 1 to {MAX_KEY} bytes")
    return key


def _size_of(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{text!r:.100} has half of a character: use whole ones, or bytes") from None


__all__ = ("MAX_DEPTH", "Kind", "MissingUpdates", "Replica", "check_document_key", "check_value", "plain")
