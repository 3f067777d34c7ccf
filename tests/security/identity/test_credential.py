"""Credentials: what they become at boot, what they refuse, and how they are kept in files."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path

import pytest
from msgspec import structs

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.security.authority.issuing import create_realm, issue_cluster
from iris.security.files.credential_file import (
    CredentialWatch,
    decode_credential,
    encode_credential,
    load_credential,
    save_credential,
)
from iris.security.identity.certificate import CLOCK_TOLERANCE, DELEGATION_LIFETIME, read_delegation_untrusted
from iris.security.identity.credential import Credential, SealedKeys, seal_credential
from iris.security.identity.identity import verify_peer_untrusted
from iris.security.identity.signing import SigningKey
from iris.security.noise.handshake_state import KeyPair
from tests.support.realms import DAY, WALL, seeded_entropy
from tests.support.sessions import finish, start

ENTROPY = seeded_entropy(11)
EMPTY = create_realm(ENTROPY)
FIRST, PORTABLE = issue_cluster(EMPTY, "orders", entropy=ENTROPY, wall_now=WALL, seeds=("tcp://a:1", "ws://b:2/x"))
REALM, OTHER = issue_cluster(FIRST, "billing", entropy=ENTROPY, wall_now=WALL)
SEALED = seal_credential(PORTABLE, entropy=ENTROPY, not_before=WALL, not_after=WALL + 30 * DAY)
BOTH = [PORTABLE, SEALED]
IDS = ["portable", "sealed"]


@pytest.mark.parametrize("credential", BOTH, ids=IDS)
def test_a_node_with_a_credential_is_accepted_by_a_node_of_another_cluster(credential: Credential) -> None:
    identity, other = credential.new_identity(ENTROPY, WALL), OTHER.new_identity(ENTROPY, WALL)
    _, answered = finish(*start(identity, other))
    assert answered.peer.cluster == "orders"
    assert answered.peer.node_id == identity.node_id
    assert answered.peer.realm_id == credential.realm_id == REALM.fingerprint == identity.realm_id
    assert answered.peer.expires == identity.expires


@pytest.mark.parametrize("credential", BOTH, ids=IDS)
def test_every_boot_has_another_node_id(credential: Credential) -> None:
    boots = [credential.new_identity(ENTROPY, WALL) for _ in range(20)]
    assert len({identity.node_id for identity in boots}) == 20


def test_node_ids_of_a_sealed_credential_begin_alike_and_share_their_keys() -> None:
    first, second = SEALED.new_identity(ENTROPY, WALL), SEALED.new_identity(ENTROPY, WALL)
    assert isinstance(SEALED.keys, SealedKeys)
    assert first.node_id[:16] == second.node_id[:16] == SEALED.keys.delegation.node
    assert first.static is second.static
    portable = [PORTABLE.new_identity(ENTROPY, WALL) for _ in range(2)]
    assert portable[0].static.public != portable[1].static.public
    assert portable[0].signing.public != portable[1].signing.public


def test_a_portable_delegation_lasts_a_day_and_allows_for_clocks_behind() -> None:
    identity = PORTABLE.new_identity(ENTROPY, WALL)
    assert identity.delegation.not_before == WALL - CLOCK_TOLERANCE
    assert identity.expires == WALL + DELEGATION_LIFETIME
    near_end = PORTABLE.certificate.not_after - 100
    assert PORTABLE.new_identity(ENTROPY, near_end).expires == PORTABLE.certificate.not_after


@pytest.mark.parametrize("credential", BOTH, ids=IDS)
@pytest.mark.parametrize("wall", [WALL - 2 * DAY, WALL + 400 * DAY])
def test_a_credential_out_of_its_time_starts_no_node(credential: Credential, wall: float) -> None:
    with pytest.raises(ConfigError, match="have a new credential issued"):
        credential.new_identity(ENTROPY, wall)


def test_a_sealed_credential_ends_with_its_delegation() -> None:
    assert SEALED.sealed
    assert not PORTABLE.sealed
    assert SEALED.expires == WALL + 30 * DAY
    with pytest.raises(ConfigError, match="delegation of node"):
        SEALED.new_identity(ENTROPY, WALL + 30 * DAY)


def test_a_sealed_credential_cannot_make_members() -> None:
    """It holds no cluster key: neither further seals nor delegations for others can come of it."""
    identity = OTHER.new_identity(ENTROPY, WALL)
    with pytest.raises(ConfigError, match="cannot speak for further nodes"):
        SEALED.delegate(identity, WALL)
    with pytest.raises(ConfigError, match="sealed already"):
        seal_credential(SEALED, entropy=ENTROPY, not_before=WALL, not_after=WALL + DAY)
    assert isinstance(PORTABLE.keys, SigningKey)
    content = encode_credential(SEALED)
    assert base64.b64encode(PORTABLE.keys.private_bytes()) not in content
    stolen = SEALED.new_identity(ENTROPY, WALL)
    forged = dataclasses.replace(stolen, node_id=identity.node_id)
    with pytest.raises(AuthenticationError, match="the delegation is for"):
        verify_peer_untrusted(
            forged.realm,
            node_id=forged.node_id,
            certificate=forged.certificate.signed,
            delegation=forged.delegation.signed,
            wall_now=WALL,
        )


def test_a_seal_does_not_outlive_the_certificate() -> None:
    sealed = seal_credential(PORTABLE, entropy=ENTROPY, not_before=WALL, not_after=WALL + 9999 * DAY)
    assert sealed.expires == PORTABLE.certificate.not_after


def test_a_node_can_speak_for_a_further_cluster() -> None:
    identity = PORTABLE.new_identity(ENTROPY, WALL)
    delegation = OTHER.delegate(identity, WALL)
    assert read_delegation_untrusted(delegation.signed, OTHER.certificate) == delegation
    peer = verify_peer_untrusted(
        identity.realm,
        node_id=identity.node_id,
        certificate=OTHER.certificate.signed,
        delegation=delegation.signed,
        wall_now=WALL,
    )
    assert peer.cluster == "billing"
    assert peer.signing_key == identity.signing.public


def test_delegating_across_realms_or_out_of_time_is_refused() -> None:
    _, foreign = issue_cluster(create_realm(seeded_entropy(5)), "x", entropy=seeded_entropy(6), wall_now=WALL)
    identity = PORTABLE.new_identity(ENTROPY, WALL)
    with pytest.raises(ConfigError, match="of realm"):
        foreign.delegate(identity, WALL)
    with pytest.raises(ConfigError, match="expired"):
        OTHER.delegate(identity, WALL + 999 * DAY)


@pytest.mark.parametrize("credential", BOTH, ids=IDS)
def test_a_running_node_renews_its_identity_and_stays_the_same_node(credential: Credential) -> None:
    identity = credential.new_identity(ENTROPY, WALL)
    renewed = credential.renew_identity(identity, WALL + 200)
    assert renewed.node_id == identity.node_id
    assert (renewed.static, renewed.signing) == (identity.static, identity.signing)
    if credential is PORTABLE:
        assert renewed.expires == identity.expires + 200
    finish(*start(renewed, OTHER.new_identity(ENTROPY, WALL)))


def test_a_sealed_node_takes_a_seal_that_renews_its_own_but_no_other() -> None:
    identity = SEALED.new_identity(ENTROPY, WALL)
    fresh = seal_credential(PORTABLE, entropy=ENTROPY, not_before=WALL, not_after=WALL + 60 * DAY, previous=SEALED)
    renewed = fresh.renew_identity(identity, WALL + 40 * DAY)
    assert renewed.expires == WALL + 60 * DAY
    other = seal_credential(PORTABLE, entropy=ENTROPY, not_before=WALL, not_after=WALL + 60 * DAY)
    with pytest.raises(ConfigError, match="sealed for another node"):
        other.renew_identity(identity, WALL)


@pytest.mark.parametrize("previous", [PORTABLE, OTHER], ids=["not sealed", "another cluster"])
def test_a_seal_renews_only_a_seal_of_the_same_cluster(previous: Credential) -> None:
    with pytest.raises(ConfigError, match="not a sealed one"):
        seal_credential(PORTABLE, entropy=ENTROPY, not_before=WALL, not_after=WALL + DAY, previous=previous)


def test_an_identity_is_not_renewed_from_another_cluster() -> None:
    with pytest.raises(ConfigError, match="restart it to change"):
        OTHER.renew_identity(PORTABLE.new_identity(ENTROPY, WALL), WALL)


def test_keys_that_do_not_belong_to_the_certificate_are_refused() -> None:
    with pytest.raises(ConfigError, match="not those that it certifies"):
        structs.replace(PORTABLE, keys=SigningKey(bytes(32)))
    assert isinstance(SEALED.keys, SealedKeys)
    for keys in (
        structs.replace(SEALED.keys, static=KeyPair(bytes(32))),
        structs.replace(SEALED.keys, signing=SigningKey(bytes(32))),
    ):
        with pytest.raises(ConfigError, match="not those that it certifies"):
            structs.replace(SEALED, keys=keys)


@pytest.mark.parametrize("secrets", [(), (bytes(32),) * 3, (bytes(31),)])
def test_gate_secrets_are_one_or_two_of_32_bytes(secrets: tuple[bytes, ...]) -> None:
    with pytest.raises(ConfigError, match="gate secret"):
        structs.replace(PORTABLE, gate_secrets=secrets)


# -- files ----------------------------------------------------------------------------------------------------


def secrets_of(credential: Credential) -> list[bytes]:
    keys = credential.keys
    own = [keys.static.private_bytes(), keys.signing.private_bytes()] if isinstance(keys, SealedKeys) else []
    return [*credential.gate_secrets, *own, *([keys.private_bytes()] if isinstance(keys, SigningKey) else [])]


def same(first: Credential, second: Credential) -> bool:
    return encode_credential(first) == encode_credential(second)


@pytest.mark.parametrize("credential", BOTH, ids=IDS)
@pytest.mark.parametrize("passphrase", [None, "a long passphrase"])
def test_a_saved_credential_loads_again(tmp_path: Path, credential: Credential, passphrase: str | None) -> None:
    path = tmp_path / "orders.iris"
    save_credential(path, credential, passphrase=passphrase)
    loaded = load_credential(str(path), passphrase=passphrase)
    assert same(loaded, credential)
    assert loaded.seeds == ("tcp://a:1", "ws://b:2/x")
    assert secrets_of(loaded) == secrets_of(credential)
    content = path.read_bytes()
    for secret in secrets_of(credential):
        assert (base64.b64encode(secret) in content) is (passphrase is None)


def test_a_passphrase_that_is_missing_or_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "orders.iris"
    save_credential(path, PORTABLE, passphrase="right")
    with pytest.raises(ConfigError, match=rf"\Acredential {path}: this credential is protected: give its passphrase\Z"):
        load_credential(path)
    with pytest.raises(ConfigError, match=rf"\Acredential {path}: the passphrase of this credential is wrong"):
        load_credential(path, passphrase="wrong")


def test_saving_does_not_overwrite_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "orders.iris"
    save_credential(path, PORTABLE)
    with pytest.raises(ConfigError, match="exists already"):
        save_credential(path, SEALED)
    assert not load_credential(path).sealed
    save_credential(path, SEALED, replace=True)
    assert load_credential(path).sealed


@pytest.mark.parametrize("credential", BOTH, ids=IDS)
def test_every_field_of_a_file_is_checked(credential: Credential) -> None:
    fields = json.loads(encode_credential(credential))
    for name in fields:
        if name == "cluster":
            continue  # for people only
        for wrong in (None, 5, "!", [], [5], base64.b64encode(bytes(7)).decode()):
            if wrong == fields[name] or (name == "seeds" and wrong == []):
                continue
            with pytest.raises(ConfigError):
                decode_credential(json.dumps(fields | {name: wrong}).encode())
        with pytest.raises(ConfigError):
            decode_credential(json.dumps({k: v for k, v in fields.items() if k != name}).encode())


def test_the_name_that_counts_is_the_certified_one() -> None:
    fields = json.loads(encode_credential(PORTABLE))
    assert decode_credential(json.dumps(fields | {"cluster": "other"}).encode()).name == "orders"


@pytest.mark.parametrize("seeds", [("x",) * 257, ("x" * 513,)])
def test_seeds_are_limited_in_number_and_length(seeds: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="at most 256 seeds"):
        encode_credential(structs.replace(PORTABLE, seeds=seeds))


# -- files that change ----------------------------------------------------------------------------------------


def test_a_watched_file_is_read_again_when_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "orders.iris"
    save_credential(path, PORTABLE)
    watch = CredentialWatch(path)
    assert not watch.poll()
    save_credential(path, SEALED, replace=True)
    assert watch.poll()
    assert watch.credential.sealed
    assert not watch.poll()
    assert str(path) in repr(watch)


def test_a_file_that_became_unusable_is_reported_once_and_the_old_credential_stays(tmp_path: Path) -> None:
    path = tmp_path / "orders.iris"
    save_credential(path, PORTABLE)
    watch = CredentialWatch(path)
    path.write_bytes(b"rubbish")
    with pytest.raises(ConfigError, match="not the JSON"):
        watch.poll()
    assert not watch.poll()
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        watch.poll()
    assert not watch.poll()
    assert same(watch.credential, PORTABLE)
    save_credential(path, PORTABLE)
    assert watch.poll()


def test_a_file_of_another_cluster_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "orders.iris"
    save_credential(path, PORTABLE)
    watch = CredentialWatch(path)
    save_credential(path, OTHER, replace=True)
    with pytest.raises(ConfigError, match="now of cluster 'billing'"):
        watch.poll()
    assert watch.credential.name == "orders"
