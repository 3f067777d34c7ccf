"""Realm root: the key that certifies clusters, and what has been certified and revoked so far.

It is a value: every operation (``iris.security.authority.issuing``) returns a new one.  It is kept in a file
(``iris.security.files.realm_files``), offline and wrapped with a passphrase.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from msgspec import field, structs

from iris.kernel.errors import ConfigError
from iris.kernel.names import Entropy
from iris.security.identity import GATE_SECRET_SIZE, MAX_GATE_SECRETS, SigningKey, TrustedRealm, realm_fingerprint
from iris.security.secret import Redacted, secrets_of


@final
class RealmRoot(Redacted, frozen=True, kw_only=True):
    """A realm as its owner holds it.  The repr shows no secret.

    Args:
        key: signs certificates and revocation lists.
        gate_secrets: one, or two while they change; new credentials get them in this order.
        is_new_used: True if the new one of two gate secrets is the first, and so in use.
        generations: the newest generation of each cluster certified so far.
        revocation_number: the number of the newest revocation list; 0 before the first.
        revoked_clusters: name to the lowest generation that is still accepted.
        revoked_nodes: node id or its first half, to when its delegation ends.
        bundle_serial: the serial of the newest bundle; 0 before the first.
        exports: the clusters that it lists; patterns.
        topics: the topics that it lists; patterns.
        trusted: realms of other owners.
        trusted_serials: for each realm that ever was trusted, by fingerprint, the newest serial that was taken.
    """

    _unshown: ClassVar = frozenset({"gate_secrets"})

    key: SigningKey
    gate_secrets: tuple[bytes, ...]
    is_new_used: bool = False
    generations: Mapping[str, int] = field(default_factory=dict[str, int])
    revocation_number: int = 0
    revoked_clusters: Mapping[str, int] = field(default_factory=dict[str, int])
    revoked_nodes: Mapping[str, int] = field(default_factory=dict[str, int])
    bundle_serial: int = 0
    exports: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    trusted: tuple[TrustedRealm, ...] = ()
    trusted_serials: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        structs.force_setattr(self, "gate_secrets", secrets_of(self.gate_secrets))
        if not 1 <= len(self.gate_secrets) <= MAX_GATE_SECRETS:
            raise ConfigError("a realm has one gate secret, or two while they change")

    @property
    def fingerprint(self) -> str:
        """The realm's name: 32 hexadecimal digits."""
        return realm_fingerprint(self.key.public)


def create_realm(entropy: Entropy) -> RealmRoot:
    """Return a new realm with a key and a gate secret of its own."""
    return RealmRoot(key=SigningKey(entropy(32)), gate_secrets=(entropy(GATE_SECRET_SIZE),))
