"""Files of a realm: its root, the bundle of another realm, and the newest revocation list.

- The *root* is secret: a container (``iris.security.files.container``) of sort ``realm``, kind ``root``.
- A *bundle* is what the owner of another realm sent.  It holds no secret, and may come from anybody.
- The newest *revocation list* is kept on disk so that after a restart an older one is refused.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.kernel.names import Entropy, is_name, is_node_id
from iris.security.authority import RealmRoot
from iris.security.files.container import encode_binary, encode_container, open_container, sort_of, wrap
from iris.security.files.private_files import UnreadableFile, prepared_private, read_private, write_private
from iris.security.identity import (
    GATE_SECRET_SIZE,
    MAX_BUNDLE,
    PAIR_SECRET_SIZE,
    WHAT,
    RealmBundle,
    RevocationList,
    SigningKey,
    encode_other_realm,
    join_trusted,
    read_bundle_untrusted,
    read_revocations_untrusted,
)

SORT: Final = "realm"
_KIND: Final = "root"
_USED: Final = "use"
"""The last step of a rotation that is in progress: of two gate secrets the new one is the first."""


def load_realm(path: Path | str, *, passphrase: str | None = None) -> RealmRoot:
    """Read a realm file.

    Raises:
        ConfigError: it cannot be read, is not private to this user, is malformed, or the passphrase is missing or
            wrong; one line that names the file.
    """
    path = Path(path)
    data = read_private(path, SORT)
    try:
        fields = open_container(data, SORT, passphrase)
        if fields.kind != _KIND:
            raise ConfigError("this is the local realm, which needs no keys to be issued")
        generations, revoked_clusters = fields.numbers("generations"), fields.numbers("revoked_clusters")
        if not all(map(is_name, (*generations, *revoked_clusters))):
            raise ConfigError("the realm file is damaged: a name of a cluster is none")
        federated = "trusted" in fields  # files of an earlier time have nothing of it
        serials = fields.numbers("trusted_serials") if federated else {}
        if not all(map(is_node_id, serials)):
            raise ConfigError("the realm file is damaged: the fingerprint of a realm is none")
        return RealmRoot(
            key=SigningKey(fields.secret("root_key", 32)),
            gate_secrets=fields.binaries("gate_secrets", GATE_SECRET_SIZE),
            is_new_used="gate_step" in fields and fields.text("gate_step") == _USED,
            generations=generations,
            revocation_number=fields.number("revocation_number"),
            revoked_clusters=revoked_clusters,
            revoked_nodes=fields.numbers("revoked_nodes"),
            bundle_serial=fields.number("bundle_serial") if federated else 0,
            exports=fields.texts("exports") if federated else (),
            topics=fields.texts("topics") if "topics" in fields else (),
            trusted=join_trusted(fields.binaries("trusted"), fields.binaries("pair_secrets", PAIR_SECRET_SIZE))
            if federated
            else (),
            trusted_serials=serials,
        )
    except (ConfigError, AuthenticationError) as error:
        raise ConfigError(f"realm {path}: {error}") from None


def save_realm(
    path: Path | str, realm: RealmRoot, *, entropy: Entropy, passphrase: str | None = None, replace: bool = False
) -> None:
    """Write a realm file of mode 0600, whole or not at all.

    Raises:
        ConfigError: it cannot be written, or exists and ``replace`` is False.
    """
    content = encode_container(
        SORT,
        _KIND,
        {
            "fingerprint": realm.fingerprint,
            "root_key": encode_binary(realm.key.private_bytes()),
            "gate_secrets": [encode_binary(secret) for secret in realm.gate_secrets],
            "gate_step": _USED if realm.is_new_used else "",
            "generations": dict(realm.generations),
            "revocation_number": realm.revocation_number,
            "revoked_clusters": dict(realm.revoked_clusters),
            "revoked_nodes": dict(realm.revoked_nodes),
            "bundle_serial": realm.bundle_serial,
            "exports": list(realm.exports),
            "topics": list(realm.topics),
            "trusted": [encode_binary(encode_other_realm(trusted.realm)) for trusted in realm.trusted],
            "pair_secrets": [encode_binary(trusted.pair_secret) for trusted in realm.trusted],
            "trusted_serials": dict(realm.trusted_serials),
        },
    )
    data = content if passphrase is None else wrap(content, SORT, passphrase, entropy)
    write_private(Path(path), data, SORT, replace=replace)


_WHAT = "bundle"


def load_bundle(path: Path) -> RealmBundle:
    """Read a bundle.

    Raises:
        ConfigError: it cannot be read, was changed on the way, or is no bundle.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BUNDLE + 1)
    except OSError as error:
        raise ConfigError(f"{_WHAT} {path}: cannot be read: {error.strerror}") from None
    other = _no_bundle(data)
    if other:
        raise ConfigError(
            f"{_WHAT} {path}: this is {other}; the owner of a realm makes its bundle by 'iris keys bundle'"
        )
    try:
        return read_bundle_untrusted(data)
    except AuthenticationError as error:
        raise ConfigError(f"{_WHAT} {path}: {error}; have its owner send it again") from None


def _no_bundle(data: bytes) -> str:
    """Return what a file is that people take for a bundle; empty if nothing is known of it."""
    sort = sort_of(data)
    if sort == SORT:
        return "a realm file, with the secret key of a realm: whoever else has got it is that realm's owner"
    if sort:
        return f"a {sort} file, and may hold secrets: send it to nobody"
    if data.lstrip().startswith(b"-----BEGIN "):
        return "a key or certificate in PEM, which Iris does not use between realms"
    return ""


def prepared_bundle(path: Path, bundle: RealmBundle) -> AbstractContextManager[None]:
    """Write a bundle that is in its place only after the block; see ``prepared_private``."""
    return prepared_private(path, bundle.signed, _WHAT)


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
        raise UnreadableFile(f"{WHAT} {path}: {error.strerror}") from None
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
