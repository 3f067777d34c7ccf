"""Certificate authority of a realm: issues, rotates and revokes credentials; ``iris keys`` calls these functions.

Everything here is a calculation: it takes values and returns new ones; files are read and written by
``iris.security.files``.  A ``RealmRoot`` that a call returns is to be saved first.

Rotations, so that no request fails; each step on all nodes before the next one begins:

- gate secret: ``add_gate_secret``, refresh all credentials (every node accepts both); ``use_new_gate_secret``, refresh
  (every node uses the new one); ``drop_old_gate_secret``, refresh.
- cluster key: ``issue_cluster`` again makes the next generation, with another key; hand its credential to the nodes;
  both generations are accepted until ``revoke_cluster``.
- node delegation: portable credentials renew it by themselves; of sealed ones, ``seal_credential`` with ``previous``.

A node takes a refreshed file without a restart (``CredentialWatch``).
"""

from __future__ import annotations

from typing import Final, Literal, final

from msgspec import Struct, structs

from iris.kernel.errors import ConfigError
from iris.kernel.names import Entropy, check_name, is_node_id
from iris.security.authority.realm_root import RealmRoot
from iris.security.authority.realm_root import create_realm as create_realm
from iris.security.identity import (
    CLOCK_TOLERANCE,
    GATE_SECRET_SIZE,
    Credential,
    RevocationList,
    Rights,
    SealedKeys,
    SigningKey,
    issue_certificate,
    issue_revocations,
)
from iris.security.identity import seal_credential as seal_credential

DAY: Final = 24 * 3600
CERTIFICATE_LIFETIME: Final = 365 * DAY

NEVER: Final = 2**40

EXPIRY_WARNING: Final = 14 * DAY


def issue_cluster(
    realm: RealmRoot,
    name: str,
    *,
    entropy: Entropy,
    wall_now: float,
    rights: Rights | None = None,
    lifetime: float = CERTIFICATE_LIFETIME,
    seeds: tuple[str, ...] = (),
) -> tuple[RealmRoot, Credential]:
    """Certify a cluster with a fresh key: its first generation, or the next one.

    Returns:
        The realm with the generation noted, and a portable credential.

    Raises:
        ConfigError: the name is not one, or the rights are too long for a certificate.
    """
    check_name(name, "cluster")
    generation = realm.generations.get(name, 0) + 1
    key = SigningKey(entropy(32))
    credential = _certify(realm, name, key, generation, rights or Rights(), wall_now, lifetime, seeds)
    return structs.replace(realm, generations={**realm.generations, name: generation}), credential


def refresh_credential(
    realm: RealmRoot,
    credential: Credential,
    *,
    wall_now: float,
    rights: Rights | None = None,
    lifetime: float | None = None,
) -> Credential:
    """Return a credential with the realm's gate secrets and trusted realms of today; its keys and seeds stay.

    A portable one gets a certificate that is valid from now.  A sealed one keeps certificate and delegation, which
    only ``seal_credential`` can renew.

    Args:
        realm: whose gate secrets and root key to use.
        credential: to be refreshed; it is not changed.
        wall_now: seconds since 1970.
        rights: None: as before.
        lifetime: seconds; None: as long as before.

    Raises:
        ConfigError: of another realm, of a revoked generation, or sealed and ``rights`` or ``lifetime`` are given.
    """
    _check_realm(realm, credential)
    if isinstance(credential.keys, SealedKeys):
        if rights is not None or lifetime is not None:
            raise ConfigError(f"credential of cluster {credential.name!r}: sealed; seal a refreshed portable one again")
        return structs.replace(credential, gate_secrets=realm.gate_secrets, trusted=realm.trusted)
    certificate = credential.certificate
    if lifetime is None:
        lifetime = certificate.not_after - certificate.not_before - CLOCK_TOLERANCE
    return _certify(
        realm,
        credential.name,
        credential.keys,
        certificate.generation,
        rights or certificate.rights,
        wall_now,
        lifetime,
        credential.seeds,
    )


def add_gate_secret(realm: RealmRoot, entropy: Entropy) -> RealmRoot:
    """First step of a rotation: both gate secrets are accepted, the old one is used.

    Raises:
        ConfigError: a rotation is in progress.
    """
    if len(realm.gate_secrets) > 1:
        raise ConfigError("the gate secret is being rotated already: finish that first")
    return structs.replace(realm, gate_secrets=(*realm.gate_secrets, entropy(GATE_SECRET_SIZE)), is_new_used=False)


def use_new_gate_secret(realm: RealmRoot) -> RealmRoot:
    """Second step, when all nodes accept both: the new one is used.

    Raises:
        ConfigError: no rotation is in progress, or the new one is used already.
    """
    if len(realm.gate_secrets) != 2:
        raise ConfigError("no gate secret has been added: begin the rotation first")
    if realm.is_new_used:
        raise ConfigError("the new gate secret is used already: once every credential is refreshed, drop the old one")
    return structs.replace(realm, gate_secrets=(realm.gate_secrets[1], realm.gate_secrets[0]), is_new_used=True)


def drop_old_gate_secret(realm: RealmRoot) -> RealmRoot:
    """Third step, when all nodes use the new one: the old one is not accepted any more.

    Raises:
        ConfigError: no rotation is in progress, or the new one is not used yet.
    """
    if len(realm.gate_secrets) != 2:
        raise ConfigError("no gate secret has been added: begin the rotation first")
    if not realm.is_new_used:
        raise ConfigError(
            "the new gate secret is not used yet, and the old one would stay: take the step 'use' first, and refresh "
            "every credential; nothing was changed"
        )
    return structs.replace(realm, gate_secrets=realm.gate_secrets[:1], is_new_used=False)


def revoke_cluster(
    realm: RealmRoot, name: str, *, wall_now: float, below: int | None = None
) -> tuple[RealmRoot, RevocationList]:
    """Revoke the certificates of a cluster whose generation is lower than ``below``; None: all there are.

    The lowest accepted generation never goes down again.

    Raises:
        ConfigError: this realm has certified no such cluster.
    """
    newest = realm.generations.get(name)
    if newest is None:
        raise ConfigError(f"this realm has certified no cluster {name!r}")
    lowest = max(newest + 1 if below is None else below, realm.revoked_clusters.get(name, 0))
    if lowest > newest + 1:
        raise ConfigError(f"cluster {name!r} has {newest} generations; nothing below {lowest} can be revoked")
    changed = structs.replace(realm, revoked_clusters={**realm.revoked_clusters, name: lowest})
    return _issue_list(changed, wall_now)


def revoke_node(
    realm: RealmRoot, node: str, *, wall_now: float, until: float | None = None
) -> tuple[RealmRoot, RevocationList]:
    """Revoke a node.

    Args:
        realm: the realm that it belongs to.
        node: its id, or the first half of it, which all node ids of a sealed credential share.
        wall_now: seconds since 1970.
        until: the end of its last delegation; the entry is left out of lists after that.  None: never, for a node
            with a portable credential makes itself another delegation every day.

    Raises:
        ConfigError: ``node`` is not a node id or half of one.
    """
    if not is_node_id(node) and not is_node_id(node * 2):
        raise ConfigError(f"{node!r} is not a node id (32 hexadecimal digits) or the first half of one")
    end = NEVER if until is None else int(until)
    changed = structs.replace(realm, revoked_nodes={**realm.revoked_nodes, node: end})
    return _issue_list(changed, wall_now)


@final
class CredentialSummary(Struct, frozen=True, kw_only=True):
    """Contents of a credential, without secrets: what ``iris keys show`` prints."""

    cluster: str
    realm: str
    sealed: bool
    generation: int
    not_before: int
    expires: int
    rights: Rights
    gate_secrets: int
    realms: tuple[str, ...]
    """Aliases of the realms of other owners that are trusted."""
    node: str | None
    """The first half of the node ids of a sealed credential."""
    seeds: tuple[str, ...]


def summarize(credential: Credential) -> CredentialSummary:
    """Return what a credential says, without secrets."""
    keys = credential.keys
    return CredentialSummary(
        cluster=credential.name,
        realm=credential.realm_id,
        sealed=credential.sealed,
        generation=credential.certificate.generation,
        not_before=credential.certificate.not_before,
        expires=credential.expires,
        rights=credential.certificate.rights,
        gate_secrets=len(credential.gate_secrets),
        realms=tuple(trusted.realm.alias for trusted in credential.trusted),
        node=keys.delegation.node if isinstance(keys, SealedKeys) else None,
        seeds=credential.seeds,
    )


FaultKind = Literal["early", "expired", "expires", "rotating", "bundle", "revoked"]


@final
class CredentialFault(Struct, frozen=True, kw_only=True):
    """A fault of a credential, or one that it soon will have.

    Args:
        kind: ``early``: not valid yet; ``expired``; ``expires``: within 14 days; ``rotating``: it holds two gate
            secrets; ``bundle``: what it says of another realm ends, or has ended; ``revoked``.
        text: one line for people.
    """

    kind: FaultKind
    text: str


def check_credential(
    credential: Credential, *, wall_now: float, revocations: RevocationList | None = None
) -> tuple[CredentialFault, ...]:
    """Return what is wrong with a credential, or soon will be; empty if nothing is."""
    faults: list[tuple[FaultKind, str]] = []
    certificate = credential.certificate
    if wall_now < certificate.not_before:
        faults.append(("early", f"valid only in {_span(certificate.not_before - wall_now)}: check the clock"))
    left = credential.expires - wall_now
    if left <= 0:
        faults.append(("expired", f"expired {_span(-left)} ago: refresh or seal it again"))
    elif left < EXPIRY_WARNING:
        faults.append(("expires", f"expires in {_span(left)}: refresh or seal it again"))
    if len(credential.gate_secrets) > 1:
        faults.append(("rotating", "holds two gate secrets: finish the rotation, then refresh it"))
    for trusted in credential.trusted:
        left = trusted.realm.ends - wall_now
        if left < EXPIRY_WARNING:
            when = f"expires in {_span(left)}" if left > 0 else f"expired {_span(-left)} ago"
            text = f"the bundle of realm {trusted.realm.alias!r} {when}: take a new one ('iris keys trust')"
            faults.append(("bundle", text))
    if revocations is not None:
        name, generation = certificate.name, certificate.generation
        if generation < revocations.clusters.get(name, 0):
            faults.append(("revoked", f"generation {generation} of cluster {name!r} is revoked"))
        keys = credential.keys
        if isinstance(keys, SealedKeys) and keys.delegation.node in revocations.nodes:
            faults.append(("revoked", f"node {keys.delegation.node} is revoked"))
    return tuple(CredentialFault(kind=kind, text=text) for kind, text in faults)


def _span(seconds: float) -> str:
    """Return a time in the unit that people would choose."""
    for size, unit in ((DAY, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _certify(
    realm: RealmRoot,
    name: str,
    key: SigningKey,
    generation: int,
    rights: Rights,
    wall_now: float,
    lifetime: float,
    seeds: tuple[str, ...],
) -> Credential:
    if generation < realm.revoked_clusters.get(name, 0):
        raise ConfigError(f"generation {generation} of cluster {name!r} is revoked: issue the cluster again")
    certificate = issue_certificate(
        realm.key,
        name=name,
        public_key=key.public,
        generation=generation,
        not_before=wall_now - CLOCK_TOLERANCE,
        not_after=wall_now + lifetime,
        rights=rights,
    )
    return Credential(
        realm=realm.key.public,
        gate_secrets=realm.gate_secrets,
        certificate=certificate,
        keys=key,
        seeds=seeds,
        trusted=realm.trusted,
    )


def _check_realm(realm: RealmRoot, credential: Credential) -> None:
    if credential.realm != realm.key.public:
        raise ConfigError(
            f"credential of cluster {credential.name!r}: of realm {credential.realm_id}, not of {realm.fingerprint}"
        )


def _issue_list(realm: RealmRoot, wall_now: float) -> tuple[RealmRoot, RevocationList]:
    current = {node: end for node, end in realm.revoked_nodes.items() if end > wall_now}
    changed = structs.replace(realm, revoked_nodes=current, revocation_number=realm.revocation_number + 1)
    issued = issue_revocations(
        changed.key,
        number=changed.revocation_number,
        issued=wall_now,
        clusters=changed.revoked_clusters,
        nodes=current,
    )
    return changed, issued
