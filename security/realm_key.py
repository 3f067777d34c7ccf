"""The realm's root: the key that certifies clusters, and what has been certified and revoked so far.

Every operation returns a new ``RealmRoot``; save it with ``save_realm`` before handing out what came with it.  The
file is a container (``iris.security.container``) of sort ``realm``, kind ``root``; keep it offline, wrapped with a
passphrase.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from iris.kernel.errors import ConfigError
from iris.kernel.ids import Entropy, is_name
from iris.security.container import encode_binary, encode_container, open_container, wrap
from iris.security.credential import GATE_SECRET_SIZE, MAX_GATE_SECRETS
from iris.security.identity import realm_fingerprint
from iris.security.private_files import read_private, write_private
from iris.security.secret import secrets_of
from iris.security.signing import SigningKey

SORT: Final = "realm"
_KIND: Final = "root"


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RealmRoot:
    """A realm as its owner holds it.  The repr shows no secret.

    Args:
        key: signs certificates and revocation lists.
        gate_secrets: one, or two while they change; new credentials get them in this order.
        generations: the newest generation of each cluster certified so far.
        revocation_number: of the newest revocation list; 0 before the first.
        revoked_clusters: name to the lowest generation that is still accepted.
        revoked_nodes: node id or its first half, to when its delegation ends.
    """

    key: SigningKey
    gate_secrets: tuple[bytes, ...] = dataclasses.field(repr=False)
    generations: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    revocation_number: int = 0
    revoked_clusters: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    revoked_nodes: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        object.__setattr__(self, "gate_secrets", secrets_of(self.gate_secrets))
        if not 1 <= len(self.gate_secrets) <= MAX_GATE_SECRETS:
            raise ConfigError("a realm has one gate secret, or two while they change")

    @property
    def fingerprint(self) -> str:
        """The realm's name: 32 hexadecimal digits."""
        return realm_fingerprint(self.key.public)


def create_realm(entropy: Entropy) -> RealmRoot:
    """Return a new realm with a key and a gate secret of its own."""
    return RealmRoot(key=SigningKey(entropy(32)), gate_secrets=(entropy(GATE_SECRET_SIZE),))


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
        return RealmRoot(
            key=SigningKey(fields.secret("root_key", 32)),
            gate_secrets=fields.binaries("gate_secrets", GATE_SECRET_SIZE),
            generations=generations,
            revocation_number=fields.number("revocation_number"),
            revoked_clusters=revoked_clusters,
            revoked_nodes=fields.numbers("revoked_nodes"),
        )
    except ConfigError as error:
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
        },
    )
    data = content if passphrase is None else wrap(content, SORT, passphrase, entropy)
    write_private(Path(path), data, SORT, replace=replace)
