"""Trust between realms: what the owner of one lets another reach, and the end of that.

As in ``iris.security.authority.issuing`` everything here is a calculation.  A change reaches the nodes with their
credentials: ``refresh_credential``.
"""

from __future__ import annotations

from msgspec import structs

from iris.kernel.errors import ConfigError
from iris.kernel.names import is_alias
from iris.security.authority.realm_root import RealmRoot
from iris.security.identity import (
    CLOCK_TOLERANCE,
    EVERYTHING,
    MAX_REALMS,
    OtherRealm,
    RealmBundle,
    TrustedRealm,
    check_patterns,
    issue_bundle,
    overlap,
    pair_secret,
)


def issue_realm_bundle(
    realm: RealmRoot,
    name: str,
    *,
    exports: tuple[str, ...],
    topics: tuple[str, ...] = (),
    wall_now: float,
    lifetime: float,
) -> tuple[RealmRoot, RealmBundle]:
    """Say what other realms may reach, in place of whatever was said before.

    Returns:
        The realm, and the bundle for other owners.

    Raises:
        ConfigError: see ``issue_bundle``, or what is to be exported can be no cluster.
    """
    _check_clusters(exports, "of this realm")
    bundle = issue_bundle(
        realm.key,
        name=name,
        exports=exports,
        topics=topics,
        serial=realm.bundle_serial + 1,
        not_before=wall_now - CLOCK_TOLERANCE,
        not_after=wall_now + lifetime,
    )
    trusted = tuple(
        structs.replace(known, realm=structs.replace(known.realm, exports=exports, topics=topics))
        for known in realm.trusted
    )
    issued = structs.replace(realm, bundle_serial=bundle.serial, exports=exports, topics=topics, trusted=trusted)
    return issued, bundle


def trust_realm(
    realm: RealmRoot,
    bundle: RealmBundle,
    *,
    wall_now: float,
    alias: str | None = None,
    imports: tuple[str, ...] | None = None,
    callers: tuple[str, ...] | None = None,
    import_topics: tuple[str, ...] | None = None,
) -> RealmRoot:
    """Trust the realm that a bundle is of, or take a newer bundle of it.

    Args:
        realm: the realm that is to trust it.
        bundle: the bundle of the other realm.
        wall_now: seconds since 1970.
        alias: its name here; None: the former one, at first the realm's name for itself.
        imports: clusters of it to be used; None: as before, at first all that its bundle lists.
        callers: clusters of it that may use services which do not say who may; None: as before, at first none.
        import_topics: topics of it to be heard; None: as before, at first all that its bundle lists.

    Raises:
        ConfigError: of this very realm, not valid now, older than one that was taken, the alias is taken or none,
            more than ``MAX_REALMS`` are trusted, or a list names what cannot be: something that its bundle does not
            export, or a cluster with the name of a realm before it.
    """
    if bundle.realm == realm.key.public:
        raise ConfigError("bundle: it is of this very realm: take the one that the other owner sent")
    if wall_now >= bundle.not_after:
        raise ConfigError(f"bundle: expired {wall_now - bundle.not_after:.0f} s ago: have its owner send a new one")
    if wall_now < bundle.not_before:
        raise ConfigError(f"bundle: valid only in {bundle.not_before - wall_now:.0f} s: check the clocks")
    newest = realm.trusted_serials.get(bundle.fingerprint, 0)
    if bundle.serial < newest:
        raise ConfigError(f"bundle: its serial is {bundle.serial}, and {newest} was taken before: that one counts")
    former = next((known.realm for known in realm.trusted if known.realm.id == bundle.fingerprint), None)
    if former is not None and bundle.serial == newest and bundle.signed != former.bundle.signed:
        raise ConfigError(
            f"bundle: another one with the serial {newest} was taken before: have its owner send a new one"
        )
    others = tuple(known for known in realm.trusted if known.realm.id != bundle.fingerprint)
    alias = alias or (bundle.name if former is None else former.alias)
    _check_alias(alias, others)
    if len(others) >= MAX_REALMS:
        raise ConfigError(f"{len(others)} realms are trusted, and no more can be: distrust one ('iris keys distrust')")
    other_realm = OtherRealm(
        alias=alias,
        bundle=bundle,
        imports=_list(imports, EVERYTHING if former is None else former.imports, "imports"),
        callers=_list(callers, () if former is None else former.callers, "callers"),
        exports=realm.exports,
        topics=realm.topics,
        import_topics=_list(import_topics, EVERYTHING if former is None else former.import_topics, "topics"),
    )
    _check_clusters((*(imports or ()), *(callers or ())), f"of realm {alias!r}")
    _check_exported(imports, bundle.exports, alias, "clusters")
    _check_exported(import_topics, bundle.topics, alias, "topics")
    trusted = TrustedRealm(realm=other_realm, pair_secret=pair_secret(realm.key, bundle))
    serials = {**realm.trusted_serials, bundle.fingerprint: bundle.serial}
    return structs.replace(realm, trusted=(*others, trusted), trusted_serials=serials)


def distrust_realm(realm: RealmRoot, alias: str) -> RealmRoot:
    """Trust a realm no more.  Which bundle of it was the newest stays known.

    Raises:
        ConfigError: none of that name is trusted.
    """
    left = tuple(known for known in realm.trusted if known.realm.alias != alias)
    if len(left) == len(realm.trusted):
        known = ", ".join(sorted(known.realm.alias for known in realm.trusted)) or "none"
        raise ConfigError(f"no realm {alias!r} is trusted; those that are: {known}")
    return structs.replace(realm, trusted=left)


def _list(given: tuple[str, ...] | None, otherwise: tuple[str, ...], what: str) -> tuple[str, ...]:
    if given is None:
        return otherwise
    check_patterns(given, "trust", what)
    return given


def _check_exported(wanted: tuple[str, ...] | None, exported: tuple[str, ...], alias: str, what: str) -> None:
    for pattern in wanted or ():
        if not any(overlap(pattern, one) for one in exported):
            raise ConfigError(
                f"{pattern!r} is nothing that realm {alias!r} exports: of its {what} that is "
                f"{', '.join(exported) or 'none'}"
            )


def _check_clusters(patterns: tuple[str, ...], of: str) -> None:
    for pattern in patterns:
        if "/" in pattern or "@" in pattern:
            raise ConfigError(
                f"{pattern!r} is no pattern of clusters {of}: use their names as they are there, with no realm or site"
            )


def _check_alias(alias: str, others: tuple[TrustedRealm, ...]) -> None:
    if not is_alias(alias):
        raise ConfigError(
            f"{alias!r} cannot be the name of a realm: use 1 to 128 of letters, digits, '-', '_' and '.', and no "
            "fingerprint"
        )
    for other in others:
        if other.realm.alias == alias:
            raise ConfigError(f"{alias!r} is the name of realm {other.realm.id} already: give another one ('--as')")
