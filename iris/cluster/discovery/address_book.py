"""Address book: addresses at which nodes of a realm were reached, kept in a file beyond the life of this node.

An entry only suggests where to dial: the node that answers there has to pass the handshake.  Of more addresses than
there is room for, those stay that were seen over the longest time: the many that commands leave behind, which live for
a second, must not push out the few of servers.

The file is shared by the nodes of one user; each reads before it writes what the others wrote.  A file that is damaged,
too large, open to others or locked by a process that is stopped costs its entries and one line in the log, never the
node.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, final

from iris.kernel.errors import ConfigError
from iris.kernel.shapes import is_list, is_map
from iris.security.files import LockHeld, locked, read_private, write_private

MAX_ADDRESSES: Final = 256
_MAX_LENGTH: Final = 256

LIFETIME: Final = 14 * 86_400.0
"""Seconds after which an address that was not seen again is forgotten."""

_WORTH_SAVING: Final = 3600.0
"""Seconds by which an address must have been seen later than the file says; a new address is saved at once."""


@final
class AddressBook:
    """Addresses, each with the first and the last time it was seen, in seconds of the wall clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}
        self._saved: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<AddressBook of {len(self._seen)}>"

    def __len__(self) -> int:
        return len(self._seen)

    def copy(self) -> AddressBook:
        """Return another one that says the same: for a thread, while this one goes on."""
        other = AddressBook()
        other._seen, other._saved = dict(self._seen), dict(self._saved)
        return other

    def merge(self, other: AddressBook, wall_now: float) -> None:
        """Take in what another one holds, and that its file says so."""
        for url, (first, last) in other._seen.items():
            known = self._seen.get(url, (first, last))
            self._seen[url] = (min(known[0], first), max(known[1], last))
        self._saved = dict(other._saved)
        self._forget(wall_now)

    def saw(self, urls: Iterable[str], wall_now: float) -> None:
        """Note that nodes of the realm are reached at these addresses now."""
        for url in urls:
            if len(url) <= _MAX_LENGTH:
                first, _ = self._seen.get(url, (wall_now, wall_now))
                self._seen[url] = (min(first, wall_now), wall_now)  # also if the clock was set back
        self._forget(wall_now)

    def _forget(self, wall_now: float) -> None:
        for url in [url for url, (_, last) in self._seen.items() if wall_now - last > LIFETIME]:
            del self._seen[url]
        if len(self._seen) > MAX_ADDRESSES:
            worth = {url: (last - first, last) for url, (first, last) in self._seen.items()}
            for url in sorted(worth, key=lambda url: worth[url])[: len(worth) - MAX_ADDRESSES]:
                del self._seen[url]

    def urls(self) -> list[str]:
        """Return the addresses, the last seen first."""
        return sorted(self._seen, key=lambda url: -self._seen[url][1])

    @property
    def unsaved(self) -> bool:
        """True if some address is not in the file yet, or was seen later than the file says."""
        return any(
            last - self._saved.get(url, -_WORTH_SAVING) >= _WORTH_SAVING for url, (_, last) in self._seen.items()
        )

    def saved(self) -> None:
        """Note that the file says the same now."""
        self._saved = {url: last for url, (_, last) in self._seen.items()}

    def not_saved(self, before: AddressBook) -> None:
        """Note that the file says what it said when ``before`` was copied."""
        self._saved = dict(before._saved)

    def encode(self) -> bytes:
        """Write it down."""
        entries = [[url, round(first), round(last)] for url, (first, last) in sorted(self._seen.items())]
        return json.dumps({"iris": "addresses", "version": 1, "addresses": entries}, indent=0).encode()

    def load_untrusted(self, data: bytes, wall_now: float) -> None:
        """Take in what a process wrote down; raise ConfigError, without a change, if it is damaged."""
        try:
            value: object = json.loads(data)
        except (ValueError, RecursionError):
            raise ConfigError("it is damaged") from None
        listed = value.get("addresses") if is_map(value) else None
        if not is_list(listed):
            raise ConfigError("it is no list of addresses")
        for entry in listed:
            match entry:
                case [str() as url, int() as first, int() as last] if len(url) <= _MAX_LENGTH and 0 <= first <= last:
                    known = self._seen.get(url, (wall_now, 0.0))
                    # Times to come are another clock's error: seen now, at best.
                    self._seen[url] = (min(known[0], first, wall_now), max(known[1], min(last, wall_now)))
                case _:
                    continue
        self._forget(wall_now)
        self.saved()


_log: Final = logging.getLogger("iris")
_WHAT: Final = "address book"

_PATIENCE: Final = 1.0
"""Seconds that the lock is waited for: a node that closes waits for it, too."""


@final
class AddressFile:
    """Reads and writes an address book.  Blocks for milliseconds: call it on a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._complained = False

    def load(self, book: AddressBook, wall_now: float) -> None:
        """Add what the file says to the book; nothing if there is none."""
        if os.path.lexists(self._path):
            try:
                data = read_private(self._path, _WHAT)
            except ConfigError as error:
                self._complain(str(error))
                return
            try:
                book.load_untrusted(data, wall_now)
            except ConfigError as error:
                self._complain(f"{_WHAT} {self._path}: {error}; a new one replaces it")

    def save(self, book: AddressBook, wall_now: float) -> None:
        """Write the book, with what others have added to the file since; it takes at most a second.

        Where another process holds the lock, nothing is written: the book stays unsaved, for the next time.
        """
        before = book.copy()
        try:
            with locked(self._path.with_name(f"{self._path.name}.lock"), _WHAT, _PATIENCE):
                self.load(book, wall_now)
                write_private(self._path, book.encode(), _WHAT)
        except LockHeld as error:
            self._complain(f"{error}; until then, addresses are not remembered")
            return
        except ConfigError as error:  # as that the disk is full, which may pass
            self._complain(f"{error}; until then, addresses are not remembered")
            book.not_saved(before)
            return
        book.saved()

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("%s", text, extra={"path": str(self._path), "cause": text})
