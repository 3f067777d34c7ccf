"""The file of a realm's root: a container (``iris.security.container``) of sort ``realm``, kind ``root``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.kernel.ids import Entropy, is_name, is_node_id
from iris.security.container import encode_binary, encode_container, open_container, wrap
from iris.security.credential import GATE_SECRET_SIZE
from iris.security.foreign_realm import PAIR_SECRET_SIZE, encode_foreign, join_trusted
from iris.security.private_files import read_private, write_private
from iris.security.realm_root import RealmRoot
from iris.security.signing import SigningKey

SORT: Final = "realm"
_KIND: Final = "root"


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
            "generations": dict(realm.generations),
            "revocation_number": realm.revocation_number,
            "revoked_clusters": dict(realm.revoked_clusters),
            "revoked_nodes": dict(realm.revoked_nodes),
            "bundle_serial": realm.bundle_serial,
            "exports": list(realm.exports),
            "topics": list(realm.topics),
            "trusted": [encode_binary(encode_foreign(trusted.realm)) for trusted in realm.trusted],
            "pair_secrets": [encode_binary(trusted.pair_secret) for trusted in realm.trusted],
            "trusted_serials": dict(realm.trusted_serials),
        },
    )
    data = content if passphrase is None else wrap(content, SORT, passphrase, entropy)
    write_private(Path(path), data, SORT, replace=replace)
