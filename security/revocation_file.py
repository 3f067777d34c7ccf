"""The newest revocation list, kept on disk: after a restart, an older one is refused."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.security.private_files import prepared_private, read_private, write_private
from iris.security.revocation import WHAT, RevocationList, read_revocations_untrusted


def load_revocations(path: Path, realm: bytes) -> RevocationList | None:
    """Read the list that was kept; None if there is none yet.

    Raises:
        ConfigError: the file is not private to this user, or not a list of this realm; or there can be none.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a directory that may not be looked into, or a name that is too long
        raise ConfigError(f"{WHAT} {path}: {error.strerror}") from None
    except ValueError as error:  # a null byte
        raise ConfigError(f"{WHAT} {str(path)!r}: {error}") from None
    try:
        return read_revocations_untrusted(read_private(path, WHAT), realm)
    except AuthenticationError as error:
        raise ConfigError(
            f"{WHAT} {path}: {error}; remove the file, the other nodes will send the list again"
        ) from None


def save_revocations(path: Path, revocations: RevocationList) -> None:
    """Keep a list on disk, synced, whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    write_private(path, revocations.signed, WHAT)


def prepared_revocations(path: Path, revocations: RevocationList) -> AbstractContextManager[None]:
    """Write a list that is in its place only after the block; see ``prepared_private``."""
    return prepared_private(path, revocations.signed, WHAT)
