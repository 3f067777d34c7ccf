"""The file in which a realm's address book outlives the node.

Nodes of one user share it; the last one to write has read before what the others wrote.

A file that is damaged, too large, open to others or locked by a process that is stopped costs what it says and one line
in the log, never the node.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final, final

from iris.cluster.address_book import AddressBook
from iris.kernel.errors import ConfigError
from iris.security.private_files import LockHeld, locked, read_private, write_private

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
                book.take_untrusted(data, wall_now)
            except ConfigError as error:
                self._complain(f"{_WHAT} {self._path}: {error}; a new one replaces it")

    def save(self, book: AddressBook, wall_now: float) -> None:
        """Write the book, with what others have added to the file since; it takes a second at the most.

        Where another process holds the lock, nothing is written: the book stays unsaved, for the next time.
        """
        try:
            with locked(self._path.with_name(f"{self._path.name}.lock"), _WHAT, _PATIENCE):
                self.load(book, wall_now)
                write_private(self._path, book.encode(), _WHAT)
        except LockHeld as error:
            self._complain(f"{error}; until then, addresses are not remembered")
            return
        except ConfigError as error:
            self._complain(f"{error}; addresses are not remembered")
        book.saved()  # also if it failed: trying again each minute would only say the same again

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("%s", text)
