"""Kept copy: a document in a file of this machine, from which a member begins when nobody else is there.

The file is written whole, or not at all, with mode 0600: a line that says what it is, a checksum, and as msgpack a
header and pieces of entries as in a comparison.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Final

from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.patterns.state.entries import BUCKETS, Entry, Vector, encode, read_untrusted
from iris.patterns.state.sync import Header, Snapshot, pieces
from iris.security.files import write_private

_WHAT: Final = "the copy of a document"
_MAGIC: Final = b"iris document 3\n"
_DIGEST: Final = 32


def save_copy(path: Path, vector: Vector, entries: list[Entry]) -> None:
    """Write a document; raise ConfigError, with the file as it was, if it cannot be written."""
    document = encode((Header(vector, [], list(range(BUCKETS))), list(pieces(entries))))
    write_private(path, _MAGIC + _checksum(document) + document, _WHAT)


def load_copy(path: Path) -> Snapshot | None:
    """Read a document, None if there is none; raise ConfigError if the file cannot be read, or is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{_WHAT} {path}: {error.strerror}") from None
    start = len(_MAGIC) + _DIGEST
    document = data[start:]
    try:
        if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != _checksum(document):
            raise RemoteProtocolError("its checksum is wrong")
        header, parts = read_untrusted(document, tuple[Header, list[bytes]], _WHAT)
        snapshot = Snapshot(header, math.inf)
        for piece in parts:
            snapshot.add_untrusted(piece)
    except RemoteProtocolError:
        raise ConfigError(
            f"{_WHAT} {path} is damaged: move it away, and the other members give the document again"
        ) from None
    return snapshot


def _checksum(document: bytes) -> bytes:
    return hashlib.blake2b(document, digest_size=_DIGEST).digest()
