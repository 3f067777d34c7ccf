"""Bundles of realms, and what the owner of another realm does with them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.kernel.wire.codec import pack
from iris.security.authority import issuing as keyring
from iris.security.authority.issuing import DAY
from iris.security.authority.realm_root import RealmRoot, create_realm
from iris.security.authority.trust import distrust_realm, issue_realm_bundle, trust_realm
from iris.security.files.credential_file import decode_credential, encode_credential, load_credential, save_credential
from iris.security.files.realm_files import load_bundle, load_realm, prepared_bundle, save_realm
from iris.security.identity import signing
from iris.security.identity.realm_bundle import (
    MAX_BUNDLE,
    MAX_REALMS,
    RealmBundle,
    decode_other_realm,
    encode_other_realm,
    federation_keys,
    issue_bundle,
    join_trusted,
    pair_secret,
    read_bundle_untrusted,
)
from tests.support.realms import WALL, seeded_entropy


def realm_and_bundle(seed: int, name: str = "acme", *exports: str) -> tuple[RealmRoot, RealmBundle]:
    return issue_realm_bundle(
        create_realm(seeded_entropy(seed)), name, exports=exports or ("databases",), wall_now=WALL, lifetime=30 * DAY
    )


OURS, OUR_BUNDLE = realm_and_bundle(1, "ours", "shop", "orders.>")
ACME, BUNDLE = realm_and_bundle(2, "acme", "databases", "store.*")


def trusted(**options: object) -> RealmRoot:
    return trust_realm(OURS, BUNDLE, wall_now=WALL, **options)  # type: ignore[arg-type]


def test_a_bundle_says_what_its_realm_says() -> None:
    read = read_bundle_untrusted(BUNDLE.signed)
    assert read == BUNDLE
    assert (read.realm, read.name, read.serial) == (ACME.key.public, "acme", 1)
    assert read.exports == ("databases", "store.*")
    assert read.fingerprint == ACME.fingerprint
    assert read.federation_key == federation_keys(ACME.key).public


def test_a_bundle_holds_no_secret() -> None:
    for secret in (ACME.key.private_bytes(), federation_keys(ACME.key).private_bytes(), *ACME.gate_secrets):
        assert bytes(secret) not in BUNDLE.signed


def test_a_bundle_with_any_bit_changed_is_refused() -> None:
    for at in range(len(BUNDLE.signed)):
        changed = bytearray(BUNDLE.signed)
        changed[at] ^= 1 << at % 8
        with pytest.raises(AuthenticationError):
            read_bundle_untrusted(bytes(changed))


def test_a_bundle_of_the_largest_size_is_issued_and_read_and_a_longer_one_is_neither() -> None:
    key = create_realm(seeded_entropy(3)).key

    def issued(last: int) -> RealmBundle:
        exports = (*(f"{number:03}" + "x" * 60 for number in range(246)), "y" * last)
        return issue_bundle(
            key, name="big", exports=exports, topics=(), serial=1, not_before=WALL, not_after=WALL + DAY
        )

    rest = MAX_BUNDLE - len(issued(100).signed)
    largest = issued(100 + rest)
    assert len(largest.signed) == MAX_BUNDLE
    assert read_bundle_untrusted(largest.signed) == largest
    with pytest.raises(ConfigError, match="use patterns in its lists"):
        issued(101 + rest)


def test_a_bundle_that_is_cut_off_or_longer_is_refused() -> None:
    for size in range(len(BUNDLE.signed)):
        with pytest.raises(AuthenticationError):
            read_bundle_untrusted(BUNDLE.signed[:size])
    for surplus in (b"\0", b"\0" * MAX_BUNDLE):
        with pytest.raises(AuthenticationError):
            read_bundle_untrusted(BUNDLE.signed + surplus)


@given(st.binary(max_size=300))
def test_junk_is_refused_with_one_error(junk: bytes) -> None:
    with pytest.raises(AuthenticationError):
        read_bundle_untrusted(junk)


def test_a_bundle_of_another_signer_is_refused() -> None:
    message = BUNDLE.signed[32 : -signing.SIGNATURE_SIZE]
    forged = ACME.key.public + OURS.key.attach(signing.BUNDLE, message)
    with pytest.raises(AuthenticationError, match="signature is not valid"):
        read_bundle_untrusted(forged)
    other_purpose = ACME.key.public + ACME.key.attach(signing.CERTIFICATE, message)
    with pytest.raises(AuthenticationError, match="signature is not valid"):
        read_bundle_untrusted(other_purpose)


@pytest.mark.parametrize(
    "fields",
    [
        (3, "acme", bytes(32), (), 1, 0, 10, ()),
        (2, "acme", bytes(32), (), 1, 0, 10),
        (2, "acme", bytes(32), (), 1, 0, 10, (1,)),
        (2, "acme", bytes(32), (), 1, 0, 10, (), ()),
        (1, "acme", bytes(32), (), 1, 0, 10, ()),
        (1, "ac/me", bytes(32), (), 1, 0, 10),
        (1, "acme", bytes(31), (), 1, 0, 10),
        (1, "acme", bytes(32), ("a", 1), 1, 0, 10),
        (1, "acme", bytes(32), "abc", 1, 0, 10),
        (1, "acme", bytes(32), ("a\x9b[2J",), 1, 0, 10),
        (2, "acme", bytes(32), (), 1, 0, 10, ("orders.\u202e",)),
        (1, "acme", bytes(32), ("a",) * 257, 1, 0, 10),
        (1, "acme", bytes(32), (), 0, 0, 10),
        (1, "acme", bytes(32), (), 1, 10, 10),
        (1, "acme", bytes(32), (), 1, -1, 10),
        (1, "acme", bytes(32), (), 1, 0),
        "acme",
    ],
)
def test_a_signed_bundle_that_makes_no_sense_is_refused(fields: object) -> None:
    signed = ACME.key.public + ACME.key.attach(signing.BUNDLE, pack(fields))
    with pytest.raises(AuthenticationError, match="malformed"):
        read_bundle_untrusted(signed)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": "a/b"}, "not a realm name"),
        ({"exports": ("a..b",)}, "not a pattern"),
        ({"exports": (">.a",)}, "not a pattern"),
        ({"exports": ("a",) * 257}, "the limit is 256"),
        ({"topics": (">.a",)}, "not a pattern"),
        ({"exports": tuple(f"{number:0200}" for number in range(100))}, "use patterns"),
        ({"not_after": WALL}, "it would be valid"),
        ({"not_after": float("nan")}, "it would be valid"),
        ({"not_after": 2.0**41}, "it would be valid"),
    ],
)
def test_a_bundle_that_would_make_no_sense_is_not_issued(options: dict[str, object], complaint: str) -> None:
    given: dict[str, object] = {
        "name": "acme",
        "exports": (),
        "serial": 1,
        "not_before": WALL,
        "not_after": WALL + DAY,
    }
    with pytest.raises(ConfigError, match=complaint):
        issue_bundle(ACME.key, **(given | options))  # type: ignore[arg-type]


def test_two_realms_agree_on_a_secret_that_a_third_does_not_have() -> None:
    third, thirds = realm_and_bundle(3)
    secret = pair_secret(OURS.key, BUNDLE)
    assert secret == pair_secret(ACME.key, OUR_BUNDLE)
    assert secret not in (pair_secret(third.key, BUNDLE), pair_secret(third.key, OUR_BUNDLE))
    assert secret not in (pair_secret(OURS.key, thirds), pair_secret(ACME.key, thirds))
    assert "secret of 32 bytes" in repr(secret)


def test_a_federation_key_that_is_no_point_is_refused() -> None:
    with pytest.raises(ConfigError, match="not valid"):
        pair_secret(OURS.key, structs.replace(BUNDLE, federation_key=bytes(32)))


def test_trust_says_what_may_be_used_and_who_may_call() -> None:
    (known,) = trusted(alias="partner", imports=("store.>",), callers=("airport",)).trusted
    realm = known.realm
    assert (realm.alias, realm.id, realm.ends) == ("partner", ACME.fingerprint, BUNDLE.not_after)
    assert [name for name in ("databases", "store.eu", "store", "x") if realm.may_use(name)] == ["store.eu"]
    assert [name for name in ("airport", "shop") if realm.may_call(name)] == ["airport"]
    assert [name for name in ("shop", "orders.eu", "secrets") if realm.may_reach(name)] == ["shop", "orders.eu"]
    assert known.pair_secret == pair_secret(ACME.key, OUR_BUNDLE)
    assert bytes(known.pair_secret).hex() not in repr(known)


def test_a_bundle_lists_the_topics_that_others_may_hear_and_its_owner_is_held_to_them() -> None:
    acme, bundle = issue_realm_bundle(
        ACME, "acme", exports=(), topics=("orders.>", "stock.*"), wall_now=WALL, lifetime=DAY
    )
    assert read_bundle_untrusted(bundle.signed).topics == acme.topics == ("orders.>", "stock.*")
    ours = trust_realm(OURS, bundle, wall_now=WALL, import_topics=("orders.>",))
    (known,) = ours.trusted
    patterns = ("orders.new", "orders.>", "stock.eu", "stock.>", "*.new", ">")
    assert [pattern for pattern in patterns if known.realm.may_listen(pattern)] == ["orders.new", "orders.>"]
    assert not any(map(known.realm.may_receive, patterns)), "ours exports none"
    (partner,) = trust_realm(acme, OUR_BUNDLE, wall_now=WALL).trusted
    assert [p for p in patterns if partner.realm.may_receive(p)] == ["orders.new", "orders.>", "stock.eu"]
    narrower, _ = issue_realm_bundle(
        structs.replace(acme, trusted=(partner,)),
        "acme",
        exports=(),
        topics=("stock.*",),
        wall_now=WALL,
        lifetime=DAY,
    )
    (told,) = narrower.trusted
    assert [pattern for pattern in patterns if told.realm.may_receive(pattern)] == ["stock.eu"]
    assert not told.realm.means_the_same(partner.realm)
    assert decode_other_realm(encode_other_realm(known.realm)) == known.realm


def test_what_was_written_before_there_were_topics_is_read_without() -> None:
    fields = (1, "acme", federation_keys(ACME.key).public, ("databases",), 1, int(WALL), int(WALL + DAY))
    older = read_bundle_untrusted(ACME.key.public + ACME.key.attach(signing.BUNDLE, pack(fields)))
    assert (older.exports, older.topics) == (("databases",), ())
    held = pack((1, "acme", older.signed, ("databases",), (), ("shop",)))
    realm = decode_other_realm(held)
    assert (realm.bundle, realm.exports, realm.topics, realm.import_topics) == (older, ("shop",), (), (">",))


def test_by_default_a_realm_has_its_own_name_and_nobody_of_it_may_call() -> None:
    (known,) = trusted().trusted
    assert known.realm.alias == "acme"
    assert known.realm.may_use("databases")
    assert not known.realm.may_use("secrets")
    assert not known.realm.may_call("airport")


def test_a_newer_bundle_takes_the_place_of_the_older_one_and_lists_stay() -> None:
    first = trusted(alias="partner", imports=("databases",), callers=("airport",))
    _, newer = issue_realm_bundle(ACME, "acme", exports=(">",), wall_now=WALL + DAY, lifetime=60 * DAY)
    assert newer.serial == 2
    second = trust_realm(first, newer, wall_now=WALL + DAY)
    (known,) = second.trusted
    assert (known.realm.alias, known.realm.imports, known.realm.callers) == ("partner", ("databases",), ("airport",))
    assert known.realm.bundle == newer
    with pytest.raises(ConfigError, match="its serial is 1, and 2 was taken before"):
        trust_realm(second, BUNDLE, wall_now=WALL + DAY)
    again = trust_realm(second, newer, wall_now=WALL + DAY, alias="renamed", callers=())
    assert [(k.realm.alias, k.realm.callers) for k in again.trusted] == [("renamed", ())]


def test_an_older_bundle_is_refused_after_the_realm_was_distrusted_too() -> None:
    _, newer = issue_realm_bundle(ACME, "acme", exports=(), wall_now=WALL, lifetime=DAY)
    root = distrust_realm(trust_realm(OURS, newer, wall_now=WALL), "acme")
    assert root.trusted == ()
    with pytest.raises(ConfigError, match="2 was taken before"):
        trust_realm(root, BUNDLE, wall_now=WALL)
    assert len(trust_realm(root, newer, wall_now=WALL).trusted) == 1


def test_of_two_bundles_with_one_serial_the_first_counts() -> None:
    """The owner went back to a copy of the realm file: which of the two is meant is unknown."""
    _, other = issue_realm_bundle(
        create_realm(seeded_entropy(2)), "acme", exports=("x",), wall_now=WALL, lifetime=30 * DAY
    )
    assert (other.realm, other.serial) == (BUNDLE.realm, BUNDLE.serial)
    with pytest.raises(ConfigError, match="another one with the serial 1"):
        trust_realm(trusted(), other, wall_now=WALL)


@pytest.mark.parametrize(
    ("wall", "complaint"), [(WALL + 30 * DAY, "expired 0 s ago"), (WALL - DAY, "valid only in .* check the clocks")]
)
def test_a_bundle_of_another_time_is_refused(wall: float, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        trust_realm(OURS, BUNDLE, wall_now=wall)


def test_the_bundle_of_the_own_realm_is_refused() -> None:
    with pytest.raises(ConfigError, match="of this very realm"):
        trust_realm(OURS, OUR_BUNDLE, wall_now=WALL)


@pytest.mark.parametrize("alias", ["a/b", "a@b", "a b", "x" * 129, "0123456789abcdef" * 2])
def test_an_alias_is_a_name_and_no_fingerprint(alias: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a realm"):
        trusted(alias=alias)


def test_a_name_that_is_taken_is_refused() -> None:
    _, other = realm_and_bundle(3, "acme")
    with pytest.raises(ConfigError, match=f"'acme' is the name of realm {ACME.fingerprint} already"):
        trust_realm(trusted(), other, wall_now=WALL)
    both = trust_realm(trusted(), other, wall_now=WALL, alias="acme2")
    assert [known.realm.alias for known in both.trusted] == ["acme", "acme2"]
    files = tuple(encode_other_realm(known.realm) for known in both.trusted)
    same = encode_other_realm(structs.replace(both.trusted[1].realm, alias="acme"))
    assert [known.realm.alias for known in join_trusted(files, (bytes(32), bytes(32)))] == ["acme", "acme2"]
    for made_up in ((files[0], same), (files[0], files[0])):
        with pytest.raises(AuthenticationError, match="two of the trusted realms have one name"):
            join_trusted(made_up, (bytes(32), bytes(32)))


def test_a_list_that_is_none_is_refused() -> None:
    for options in ({"imports": ("a..b",)}, {"callers": (">.b",)}):
        with pytest.raises(ConfigError, match="not a pattern"):
            trusted(**options)


def test_the_number_of_realms_has_a_limit() -> None:
    root = OURS
    for seed in range(MAX_REALMS):
        root = trust_realm(root, realm_and_bundle(10 + seed, f"r{seed}")[1], wall_now=WALL)
    with pytest.raises(ConfigError, match="no more can be"):
        trust_realm(root, BUNDLE, wall_now=WALL)
    assert len(trust_realm(distrust_realm(root, "r0"), BUNDLE, wall_now=WALL).trusted) == MAX_REALMS


def test_distrusting_whom_nobody_trusts_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no realm 'other' is trusted; those that are: acme"):
        distrust_realm(trusted(), "other")


def test_a_new_bundle_changes_what_those_may_reach_who_are_trusted_already() -> None:
    root, bundle = issue_realm_bundle(trusted(), "ours", exports=("only",), wall_now=WALL, lifetime=DAY)
    assert (bundle.serial, bundle.exports) == (2, ("only",))
    (known,) = root.trusted
    assert known.realm.may_reach("only")
    assert not known.realm.may_reach("shop")


def test_a_realm_file_keeps_it_all_and_one_of_an_earlier_time_can_be_read(tmp_path: Path) -> None:
    root = trusted(imports=("databases",), callers=("airport",))
    save_realm(tmp_path / "realm", root, entropy=seeded_entropy(5))
    read = load_realm(tmp_path / "realm")
    assert (read.trusted, read.trusted_serials) == (root.trusted, root.trusted_serials)
    assert (read.bundle_serial, read.exports) == (1, ("shop", "orders.>"))
    fields = ("bundle_serial", "exports", "trusted", "trusted_serials")
    older = {name: value for name, value in json.loads((tmp_path / "realm").read_bytes()).items() if name not in fields}
    (tmp_path / "realm").write_text(json.dumps(older))
    read = load_realm(tmp_path / "realm")
    assert (read.bundle_serial, read.exports, read.trusted, read.trusted_serials) == (0, (), (), {})


def test_credentials_get_it_when_they_are_issued_or_refreshed_portable_or_sealed() -> None:
    plain, credential = keyring.issue_cluster(OURS, "shop", entropy=seeded_entropy(7), wall_now=WALL)
    sealed = keyring.seal_credential(credential, entropy=seeded_entropy(8), not_before=WALL, not_after=WALL + DAY)
    root = trust_realm(plain, BUNDLE, wall_now=WALL)
    for former in (credential, sealed):
        assert former.trusted == ()
        refreshed = keyring.refresh_credential(root, former, wall_now=WALL)
        assert refreshed.trusted == root.trusted
        assert decode_credential(encode_credential(refreshed)).trusted == root.trusted
        assert keyring.summarize(refreshed).realms == ("acme",)
        gone = keyring.refresh_credential(distrust_realm(root, "acme"), refreshed, wall_now=WALL)
        assert gone.trusted == ()
    _, issued = keyring.issue_cluster(root, "shop", entropy=seeded_entropy(9), wall_now=WALL)
    assert issued.trusted == root.trusted
    assert issued.new_identity(seeded_entropy(1), WALL).trusted == root.trusted


def test_a_bundle_that_is_about_to_end_is_a_finding() -> None:
    _, credential = keyring.issue_cluster(
        trusted(), "shop", entropy=seeded_entropy(7), wall_now=WALL, lifetime=900 * DAY
    )
    assert keyring.check_credential(credential, wall_now=WALL + DAY) == ()
    (soon,) = keyring.check_credential(credential, wall_now=WALL + 29 * DAY)
    assert soon.text == "the bundle of realm 'acme' expires in 24.0 hours: take a new one ('iris keys trust')"
    (late,) = keyring.check_credential(credential, wall_now=WALL + 40 * DAY)
    assert (late.kind, "expired 10.0 days ago" in late.text) == ("bundle", True)


def test_a_credential_file_with_a_trusted_realm_that_was_damaged_is_refused(tmp_path: Path) -> None:
    _, credential = keyring.issue_cluster(trusted(), "shop", entropy=seeded_entropy(7), wall_now=WALL)
    (known,) = credential.trusted
    encoded = encode_other_realm(known.realm)
    assert decode_other_realm(encoded) == known.realm
    for size in range(len(encoded)):
        with pytest.raises(AuthenticationError):
            decode_other_realm(encoded[:size])
    save_credential(tmp_path / "c", credential)
    assert load_credential(tmp_path / "c").trusted == (known,)
    fields = json.loads((tmp_path / "c").read_bytes())
    for name in ("trusted", "pair_secrets"):
        for wrong in (None, 5, [5], ["!"], [], [base64.b64encode(bytes(7)).decode()], fields[name] * 2):
            if name == "trusted" and wrong == []:
                continue  # it trusts nobody
            with pytest.raises(ConfigError):
                decode_credential(json.dumps(fields | {name: wrong}).encode())


def test_a_bundle_file_that_cannot_be_used_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "acme.bundle"
    with pytest.raises(ConfigError, match=r"bundle .*acme.bundle: cannot be read: No such file"):
        load_bundle(path)
    with prepared_bundle(path, BUNDLE):
        pass
    assert load_bundle(path) == BUNDLE
    path.write_bytes(BUNDLE.signed[:-1])
    with pytest.raises(ConfigError, match=r"signature is not valid; have its owner send it again"):
        load_bundle(path)
    path.write_bytes(b"x" * 10**6)
    with pytest.raises(ConfigError, match="the limit is"):
        load_bundle(path)
