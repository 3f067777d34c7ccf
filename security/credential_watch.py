"""A credential file that may be replaced while a node runs: how keys rotate without a restart.

Use::

    watch = CredentialWatch(path)
    identity = watch.credential.new_identity(entropy, wall_now)
    ...  # now and then, and before ``identity.expires``:
    watch.poll()
    identity = watch.credential.renew_identity(identity, wall_now)
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from iris.kernel.errors import ConfigError
from iris.security.credential import Credential
from iris.security.credential_file import load_credential


@final
class CredentialWatch:
    """The credential in a file, read again when the file has changed.

    Args:
        passphrase: of the file, if it is wrapped; ignored if it is not.

    Raises:
        ConfigError: as ``load_credential``.

    Attributes:
        credential: the last one that could be read.
    """

    __slots__ = ("_passphrase", "_path", "_seen", "credential")

    def __init__(self, path: Path | str, *, passphrase: str | None = None) -> None:
        self._path = Path(path)
        self._passphrase = passphrase
        self._seen = self._state()
        self.credential: Credential = load_credential(self._path, passphrase=passphrase)

    def __repr__(self) -> str:
        return f"<CredentialWatch {self._path}>"

    def poll(self) -> bool:
        """Look at the file; tell whether there is another credential than before.

        Raises:
            ConfigError: the file changed and cannot be used.  The credential read before stays, and this file is not
                read again until it changes again.
        """
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        fresh = load_credential(self._path, passphrase=self._passphrase)
        if (fresh.realm, fresh.name) != (self.credential.realm, self.credential.name):
            raise ConfigError(
                f"credential {self._path}: now of cluster {fresh.name!r} in realm {fresh.realm_id}; restart to change"
            )
        self.credential = fresh
        return True

    def _state(self) -> tuple[int, int, int] | None:
        """Return what changes when the file is replaced or written to."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
