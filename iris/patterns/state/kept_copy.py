"""Kept copy: a document in a file of this machine, from which a member begins when nobody else is there.

The file is written whole, or not at all, with mode 0600: a line that says what it is, a checksum, and as msgpack the
vector and the entries.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from iris.kernel.errors import ConfigError
from iris.security.files import write_private

_WHAT: Final = "the copy of a document"
_MAGIC: Final = b"iris document 2\n"
_DIGEST: Final = 32


def save_copy(path: Path, document: bytes) -> None:
    """Write a document.

    Raises:
        ConfigError: it cannot be written; the file is as it was.
    """
    write_private(path, _MAGIC + _checksum(document) + document, _WHAT)


def load_copy(path: Path) -> bytes | None:
    """Read a document; None if there is none.

    Raises:
        ConfigError: the file cannot be read, or is damaged.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{_WHAT} {path}: {error.strerror}") from None
    start = len(_MAGIC) + _DIGEST
    document = data[start:]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != _checksum(document):
        raise damaged_copy(path)
    return document


def damaged_copy(path: Path) -> ConfigError:
    """Return the error for a file that holds no document."""
    return ConfigError(f"{_WHAT} {path} is damaged: move it away, and the other members give the document again")


def _checksum(document: bytes) -> bytes:
    return hashlib.blake2b(document, digest_size=_DIGEST).digest()
