"""Credential file: a credential as JSON of mode 0600, and a watch by which keys rotate without a restart.

::

    {"iris": "credential", "version": 1, "kind": "portable", "cluster": "databases",
     "realm": B64, "gate_secrets": [B64], "certificate": B64, "seeds": [URL], "cluster_key": B64}
    {... "kind": "sealed", ... "delegation": B64, "static_key": B64, "signing_key": B64}

Keys are the raw 32 bytes; certificate and delegation are signed bytes.  ``cluster`` is for people: the name that
counts is in the certificate.  Realms of other owners are in ``trusted`` and ``pair_secrets``, if there are any; see
``iris.security.identity.realm_bundle``.  A passphrase may wrap the file, as ``iris.security.files.container``
describes.

The file may be replaced while a node runs::

    watch = CredentialWatch(path)
    identity = watch.credential.new_identity(entropy, wall_now)
    ...  # now and then, and before ``identity.expires``:
    watch.poll()
    identity = watch.credential.renew_identity(identity, wall_now)
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, final

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.kernel.names import Entropy
from iris.security.files.container import encode_binary, encode_container, open_container, wrap
from iris.security.files.private_files import FileLook, prepared_private, read_private, write_private
from iris.security.identity import (
    GATE_SECRET_SIZE,
    PAIR_SECRET_SIZE,
    Credential,
    SealedKeys,
    SigningKey,
    encode_other_realm,
    join_trusted,
    read_certificate_untrusted,
    read_delegation_untrusted,
)
from iris.security.noise import KeyPair

MAX_SEEDS: Final = 256
MAX_SEED: Final = 512

_SORT: Final = "credential"


def load_credential(path: Path | str, *, passphrase: str | None = None) -> Credential:
    """Read a credential file; every signature in it is verified.

    Raises:
        ConfigError: it cannot be read, is not private to this user, is malformed, or the passphrase is missing or
            wrong.  One line, which names the file and says how to mend it.
    """
    path = Path(path)
    data = read_private(path, _SORT, mounted=True)
    try:
        return decode_credential(data, passphrase=passphrase)
    except ConfigError as error:
        raise ConfigError(f"credential {path}: {error}") from None


def save_credential(
    path: Path | str,
    credential: Credential,
    *,
    passphrase: str | None = None,
    replace: bool = False,
    entropy: Entropy = os.urandom,
) -> None:
    """Write a credential file of mode 0600, whole or not at all.

    Raises:
        ConfigError: it cannot be written, or exists and ``replace`` is False.
    """
    data = encode_credential(credential, passphrase=passphrase, entropy=entropy)
    write_private(Path(path), data, _SORT, replace=replace)


def prepared_credential(
    path: Path | str, credential: Credential, *, passphrase: str | None = None
) -> AbstractContextManager[None]:
    """Write a credential file that is there only after the block; see ``prepared_private``."""
    return prepared_private(Path(path), encode_credential(credential, passphrase=passphrase), _SORT, replace=False)


def encode_credential(credential: Credential, *, passphrase: str | None = None, entropy: Entropy = os.urandom) -> bytes:
    """Return the content of a credential file.

    Raises:
        ConfigError: too many seeds, or an empty passphrase.
    """
    fields: dict[str, object] = {
        "cluster": credential.name,
        "realm": encode_binary(credential.realm),
        "gate_secrets": [encode_binary(secret) for secret in credential.gate_secrets],
        "certificate": encode_binary(credential.certificate.signed),
        "seeds": list(_check_seeds(credential.seeds)),
    }
    if credential.trusted:
        fields["trusted"] = [encode_binary(encode_other_realm(trusted.realm)) for trusted in credential.trusted]
        fields["pair_secrets"] = [encode_binary(trusted.pair_secret) for trusted in credential.trusted]
    if isinstance(credential.keys, SealedKeys):
        kind = "sealed"
        fields["delegation"] = encode_binary(credential.keys.delegation.signed)
        fields["static_key"] = encode_binary(credential.keys.static.private_bytes())
        fields["signing_key"] = encode_binary(credential.keys.signing.private_bytes())
    else:
        kind = "portable"
        fields["cluster_key"] = encode_binary(credential.keys.private_bytes())
    content = encode_container(_SORT, kind, fields)
    return content if passphrase is None else wrap(content, _SORT, passphrase, entropy)


def decode_credential(data: bytes, *, passphrase: str | None = None) -> Credential:
    """Return the credential in ``data``, the content of a file; every signature in it is verified.

    Raises:
        ConfigError: malformed, of another version, or the passphrase is missing or wrong.
    """
    fields = open_container(data, _SORT, passphrase)
    realm = fields.binary("realm", 32)
    try:
        certificate = read_certificate_untrusted(fields.binary("certificate"), realm)
        keys: SigningKey | SealedKeys
        match fields.kind:
            case "portable":
                keys = SigningKey(fields.secret("cluster_key", 32))
            case "sealed":
                keys = SealedKeys(
                    delegation=read_delegation_untrusted(fields.binary("delegation"), certificate),
                    static=KeyPair(fields.secret("static_key", 32)),
                    signing=SigningKey(fields.secret("signing_key", 32)),
                )
            case unknown:
                raise ConfigError(f"its kind {unknown[:40]!r} is not known; a newer Iris may have written it")
        realms = fields.binaries("trusted") if "trusted" in fields else ()
        trusted = join_trusted(realms, fields.binaries("pair_secrets", PAIR_SECRET_SIZE) if realms else ())
    except AuthenticationError as error:
        raise ConfigError(str(error)) from None
    return Credential(
        realm=realm,
        gate_secrets=fields.binaries("gate_secrets", GATE_SECRET_SIZE),
        certificate=certificate,
        keys=keys,
        seeds=_check_seeds(fields.texts("seeds")),
        trusted=trusted,
    )


def _check_seeds(seeds: tuple[str, ...]) -> tuple[str, ...]:
    if len(seeds) > MAX_SEEDS or any(len(seed) > MAX_SEED for seed in seeds):
        raise ConfigError(f"at most {MAX_SEEDS} seeds of at most {MAX_SEED} characters each")
    return seeds


@final
class CredentialWatch:
    """The credential in a file, read again when the file has changed.

    Args:
        passphrase: the passphrase of the file, if it is wrapped; ignored if it is not.

    Raises:
        ConfigError: see ``load_credential``.

    Attributes:
        credential: the last one that could be read.
    """

    __slots__ = ("_file", "_passphrase", "_path", "credential")

    def __init__(self, path: Path | str, *, passphrase: str | None = None) -> None:
        self._path = Path(path)
        self._passphrase = passphrase
        self._file = FileLook(self._path)
        self.credential: Credential = load_credential(self._path, passphrase=passphrase)

    def __repr__(self) -> str:
        return f"<CredentialWatch {self._path}>"

    def poll(self) -> bool:
        """Look at the file; return whether there is another credential than before.

        Raises:
            ConfigError: the file changed and cannot be used.  The credential read before stays, and this file is not
                read again until it changes again, unless the system did not let it be read.  Said once.
        """
        if not self._file.is_due():
            return False
        try:
            fresh = load_credential(self._path, passphrase=self._passphrase)
        except ConfigError as error:
            if self._file.failed(error):
                raise
            return False
        if (fresh.realm, fresh.name) != (self.credential.realm, self.credential.name):
            raise ConfigError(
                f"credential {self._path}: now of cluster {fresh.name!r} in realm {fresh.realm_id}; restart to change"
            )
        self.credential = fresh
        return True
