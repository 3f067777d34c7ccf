"""Realm bundle (trust bundle, as in SPIFFE): how a realm makes itself known, and what a node holds of one it trusts.

A *bundle* is public: the realm's root key, the clusters that it lets others reach, the topics that it lets them hear,
a key by which two realms agree on a secret, how long all that holds, and a serial that grows.  The root signs it.
Whether it is the bundle of the right owner is for people to see: the fingerprint of the realm has to be compared with
what the owner says.

The *pair secret* of two realms follows from their federation keys, by X25519 between the two.  In handshakes between
them it takes the place of the gate secret: who does not know it is not answered.  It opens nothing.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final, TypeGuard, final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct, structs

from iris.kernel.errors import AuthenticationError, ConfigError, RemoteProtocolError
from iris.kernel.names import check_name, is_alias, is_name
from iris.kernel.shapes import is_tuple
from iris.kernel.topic_syntax import is_pattern
from iris.kernel.wire import pack, unpack_untrusted
from iris.security.identity import signing
from iris.security.identity.permissions import MAX_PATTERNS, check_patterns, covers
from iris.security.identity.signing import SigningKey, realm_fingerprint
from iris.security.noise import DHLEN, KeyPair
from iris.security.secret import Redacted, Secret

VERSION: Final = 2
"""Version 1 had no lists of topics; what was written then is read as if they were not given."""

MAX_BUNDLE: Final = 16 * 1024
PAIR_SECRET_SIZE: Final = 32
MAX_REALMS: Final = 8
"""Realms that one may trust: each costs a stranger's junk 15 us more of a node's time, as a second gate secret does."""

EVERYTHING: Final = (">",)
_WHAT: Final = "bundle"


@final
class RealmBundle(Redacted, frozen=True, kw_only=True):
    """The signed statement of a realm about itself, for owners of other realms.

    Args:
        realm: root public key.
        name: the realm's name for itself.
        federation_key: X25519 public key.
        exports: clusters that others may reach, as patterns.
        topics: topics whose events others may receive, as patterns.
        serial: grows with each bundle of the realm.
        not_before: seconds since 1970.
        not_after: likewise.
        signed: the signed bytes in the file.
    """

    _unshown: ClassVar = frozenset({"realm", "federation_key", "signed"})

    realm: bytes
    name: str
    federation_key: bytes
    exports: tuple[str, ...]
    serial: int
    not_before: int
    not_after: int
    signed: bytes
    topics: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the realm: 32 hexadecimal digits."""
        return realm_fingerprint(self.realm)


@final
class OtherRealm(Struct, frozen=True, kw_only=True):
    """A realm of another owner, as this one sees it.

    Args:
        alias: the realm's name here.
        bundle: the newest bundle that was accepted.
        imports: clusters of it that are used here, as far as its bundle lists them; patterns.
        callers: clusters of it whose nodes may use services here that do not say who may; patterns.
        exports: clusters of this realm that its nodes may reach; patterns.
        topics: topics of this realm whose events its nodes may receive; patterns.
        import_topics: topics of it that are received here, as far as its bundle lists them; patterns.
    """

    alias: str
    bundle: RealmBundle
    imports: tuple[str, ...] = EVERYTHING
    callers: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    import_topics: tuple[str, ...] = EVERYTHING

    @property
    def id(self) -> str:
        """The fingerprint of the realm."""
        return self.bundle.fingerprint

    @property
    def ends(self) -> int:
        """Time at which trust in it ends, in seconds since 1970."""
        return self.bundle.not_after

    def may_use(self, cluster: str) -> bool:
        """Return whether nodes of this realm may ask a cluster of that one."""
        return _listed(self.bundle.exports, cluster) and _listed(self.imports, cluster)

    def may_reach(self, cluster: str) -> bool:
        """Return whether nodes of that realm may ask a cluster of this one, if its service lets them."""
        return _listed(self.exports, cluster)

    def may_call(self, cluster: str) -> bool:
        """Return whether nodes of a cluster there may use services here that do not say who may."""
        return _listed(self.callers, cluster)

    def may_listen(self, pattern: str) -> bool:
        """Return whether nodes of this realm may hear the events of all topics there that match a pattern."""
        return _listed(self.bundle.topics, pattern) and _listed(self.import_topics, pattern)

    def may_receive(self, pattern: str) -> bool:
        """Return whether nodes of that realm may hear the events of all topics here that match a pattern."""
        return _listed(self.topics, pattern)

    def means_the_same(self, other: OtherRealm) -> bool:
        """Return whether two states of one realm differ in their time only."""
        return self._meaning == other._meaning

    @property
    def _meaning(self) -> tuple[object, ...]:
        lists = (self.imports, self.callers, self.exports, self.topics, self.import_topics)
        return (self.alias, lists, self.bundle.realm, set(self.bundle.exports), set(self.bundle.topics))

    def check_time(self, wall_now: float) -> None:
        """Check that the bundle is valid at ``wall_now``.

        Raises:
            AuthenticationError: it is not, or not yet.
        """
        what = f"the bundle of realm {self.alias!r} (serial {self.bundle.serial}) is not valid now"
        if wall_now < self.bundle.not_before:
            raise AuthenticationError(f"{what}, only in {self.bundle.not_before - wall_now:.0f} s; check the clocks")
        if wall_now >= self.bundle.not_after:
            raise AuthenticationError(f"{what}: have its owner send a new one")


@final
class TrustedRealm(Redacted, frozen=True, kw_only=True):
    """Another realm, and the secret that begins handshakes with its nodes.  The repr does not show it."""

    _unshown: ClassVar = frozenset({"pair_secret"})

    realm: OtherRealm
    pair_secret: bytes

    def __post_init__(self) -> None:
        structs.force_setattr(self, "pair_secret", Secret(self.pair_secret))


def federation_keys(root: SigningKey) -> KeyPair:
    """Return the key pair by which a realm agrees on secrets with others; it follows from the root key."""
    return KeyPair(_derive(root.private_bytes(), b"iris federation key 1"))


def pair_secret(root: SigningKey, bundle: RealmBundle) -> Secret:
    """Return the secret of two realms: the same at either side.

    Raises:
        ConfigError: the federation key in the bundle is none.
    """
    try:
        shared = federation_keys(root).dh(bundle.federation_key)
    except AuthenticationError as error:
        raise ConfigError(f"{_WHAT}: {error}") from None
    return _derive(shared, b"iris realm pair 1\0" + b"".join(sorted((root.public, bundle.realm))))


def issue_bundle(
    root: SigningKey,
    *,
    name: str,
    exports: tuple[str, ...],
    topics: tuple[str, ...] = (),
    serial: int,
    not_before: float,
    not_after: float,
) -> RealmBundle:
    """Sign a bundle with the realm's root key.

    Raises:
        ConfigError: the name is not one, a pattern is none, the validity is empty, or it takes more than 16 KiB.
    """
    check_name(name, "realm")
    check_patterns(exports, _WHAT, "exports")
    check_patterns(topics, _WHAT, "topics")
    if not (math.isfinite(not_before) and math.isfinite(not_after) and 0 <= int(not_before) < int(not_after) < 2**40):
        raise ConfigError(f"{_WHAT}: it would be valid from {not_before} until {not_after}")
    fields = (VERSION, name, federation_keys(root).public, exports, serial, int(not_before), int(not_after), topics)
    signed = root.public + root.attach(signing.BUNDLE, pack(fields))
    if len(signed) > MAX_BUNDLE:
        raise ConfigError(f"{_WHAT}: {len(signed)} bytes: the limit is {MAX_BUNDLE}; use patterns in its lists")
    return read_bundle_untrusted(signed)


def read_bundle_untrusted(signed: bytes) -> RealmBundle:
    """Verify a bundle against the root key that it names, then decode it.  Validity in time is not looked at.

    Raises:
        AuthenticationError: changed, cut off, or no bundle.
    """
    if len(signed) > MAX_BUNDLE:
        raise AuthenticationError(f"{_WHAT}: {len(signed)} bytes: the limit is {MAX_BUNDLE}")
    realm, rest = signed[: signing.PUBLIC_KEY_SIZE], signed[signing.PUBLIC_KEY_SIZE :]
    match _fields(signing.detach_untrusted(realm, signing.BUNDLE, rest, _WHAT), ()):
        case (
            int(version),
            name,
            bytes(federation_key),
            exports,
            int(serial),
            int(not_before),
            int(not_after),
            topics,
        ) if (
            version == VERSION
            and is_name(name)
            and len(federation_key) == DHLEN
            and _are_patterns(exports)
            and _are_patterns(topics)
            and serial > 0
            and 0 <= not_before < not_after < 2**40
        ):
            return RealmBundle(
                realm=realm,
                name=name,
                federation_key=federation_key,
                exports=exports,
                serial=serial,
                not_before=not_before,
                not_after=not_after,
                signed=signed,
                topics=topics,
            )
        case _:
            raise AuthenticationError(f"{_WHAT}: malformed, or of another version")


def encode_other_realm(realm: OtherRealm) -> bytes:
    """Return the form in which files of this realm hold another one."""
    lists = (realm.imports, realm.callers, realm.exports, realm.topics, realm.import_topics)
    return pack((VERSION, realm.alias, realm.bundle.signed, *lists))


def decode_other_realm(data: bytes) -> OtherRealm:
    """Read what ``encode_other_realm`` wrote; the bundle is verified again.

    Raises:
        AuthenticationError: malformed.
    """
    match _fields(data, (), EVERYTHING):
        case (int(version), alias, bytes(signed), *lists) if (
            version == VERSION and is_alias(alias) and len(lists) == 5 and _are_lists(lists)
        ):
            imports, callers, exports, topics, import_topics = lists
            return OtherRealm(
                alias=alias,
                bundle=read_bundle_untrusted(signed),
                imports=imports,
                callers=callers,
                exports=exports,
                topics=topics,
                import_topics=import_topics,
            )
        case _:
            raise AuthenticationError("a trusted realm: malformed, or of another version")


def join_trusted(realms: tuple[bytes, ...], secrets: tuple[bytes, ...]) -> tuple[TrustedRealm, ...]:
    """Return trusted realms from what a file holds of each: what ``encode_other_realm`` wrote, and its pair secret.

    Raises:
        AuthenticationError: malformed, there is not one secret for each, or one name or key is that of two.
    """
    if len(realms) != len(secrets):
        raise AuthenticationError(f"{len(realms)} trusted realms and {len(secrets)} pair secrets")
    decoded = tuple(map(decode_other_realm, realms))
    for named in ([realm.alias for realm in decoded], [realm.id for realm in decoded]):
        if len(set(named)) < len(named):
            raise AuthenticationError("two of the trusted realms have one name, or one is there twice")
    return tuple(TrustedRealm(realm=realm, pair_secret=secret) for realm, secret in zip(decoded, secrets, strict=True))


def _derive(key: bytes, info: bytes) -> Secret:
    return Secret(HKDF(algorithm=hashes.SHA256(), length=PAIR_SECRET_SIZE, salt=None, info=info).derive(key))


def _listed(patterns: tuple[str, ...], cluster: str) -> bool:
    return any(covers(pattern, cluster) for pattern in patterns)


def _fields(message: bytes, *added: tuple[str, ...]) -> tuple[object, ...]:
    """Return the fields of a message; those that version 1 had not are ``added`` to what is of that."""
    try:
        fields = unpack_untrusted(message)
    except RemoteProtocolError as error:
        raise AuthenticationError(f"{_WHAT}: {error}") from None
    read = fields if is_tuple(fields) else ()
    return (VERSION, *read[1:], *added) if read[:1] == (1,) else read


def _are_patterns(value: object) -> TypeGuard[tuple[str, ...]]:
    return is_tuple(value) and len(value) <= MAX_PATTERNS and all(map(is_pattern, value))


def _are_lists(value: list[object]) -> TypeGuard[list[tuple[str, ...]]]:
    return all(map(_are_patterns, value))
