"""Work of a realm's owner with its keys: rotations fail no node meanwhile."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path

import pytest
from msgspec import structs

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.security.authority.issuing import (
    CERTIFICATE_LIFETIME,
    CredentialSummary,
    add_gate_secret,
    check_credential,
    create_realm,
    drop_old_gate_secret,
    issue_cluster,
    refresh_credential,
    revoke_cluster,
    revoke_node,
    seal_credential,
    summarize,
    use_new_gate_secret,
)
from iris.security.authority.realm_root import RealmRoot
from iris.security.channel.handshake import Initiator, Responder
from iris.security.files.local_realm import open_local_realm
from iris.security.files.realm_files import load_realm, save_realm
from iris.security.identity.credential import Credential
from iris.security.identity.identity import NodeIdentity
from iris.security.identity.permissions import Rights
from iris.security.identity.signing import SigningKey
from tests.support.realms import DAY, WALL, seeded_entropy
from tests.support.sessions import finish

ENTROPY = seeded_entropy(21)


def realm_with(*names: str) -> tuple[RealmRoot, list[Credential]]:
    realm = create_realm(ENTROPY)
    credentials: list[Credential] = []
    for name in names:
        realm, credential = issue_cluster(realm, name, entropy=ENTROPY, wall_now=WALL)
        credentials.append(credential)
    return realm, credentials


def meet(dialler: NodeIdentity, listener: NodeIdentity) -> None:
    initiator = Initiator(dialler, index=1, hello=b"", entropy=ENTROPY, wall_now=WALL)
    finish(initiator, Responder(listener, index=2, entropy=ENTROPY))


# -- realm files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passphrase", [None, "seven brave otters"])
def test_a_saved_realm_loads_again(tmp_path: Path, passphrase: str | None) -> None:
    realm, _ = realm_with("orders", "billing")
    realm, _ = revoke_cluster(realm, "orders", wall_now=WALL)
    realm, _ = revoke_node(realm, "ab" * 16, wall_now=WALL)
    realm = add_gate_secret(realm, ENTROPY)
    path = tmp_path / "realm.iris"
    save_realm(path, realm, entropy=ENTROPY, passphrase=passphrase)
    loaded = load_realm(str(path), passphrase=passphrase)
    assert loaded.fingerprint == realm.fingerprint
    assert loaded.key.private_bytes() == realm.key.private_bytes()
    assert structs.replace(loaded, key=realm.key) == realm
    root_key = base64.b64encode(realm.key.private_bytes())
    assert (root_key in path.read_bytes()) is (passphrase is None)
    with pytest.raises(ConfigError, match="exists already"):
        save_realm(path, realm, entropy=ENTROPY)


def test_a_realm_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "realm.iris"
    path.write_bytes(b"rubbish")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=f"realm {path}: not a realm file"):
        load_realm(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="run: chmod 600"):
        load_realm(path)


def test_the_local_realm_is_not_mistaken_for_one_that_issues_keys(tmp_path: Path) -> None:
    open_local_realm(home=tmp_path / "home")
    with pytest.raises(ConfigError, match="needs no keys to be issued"):
        load_realm(tmp_path / "home" / "local" / "realm.json")


# -- clusters -------------------------------------------------------------------------------------------------


def test_issuing_again_makes_the_next_generation_with_another_key() -> None:
    realm, (first,) = realm_with("orders")
    realm, second = issue_cluster(realm, "orders", entropy=ENTROPY, wall_now=WALL)
    assert (first.certificate.generation, second.certificate.generation) == (1, 2)
    assert first.certificate.public_key != second.certificate.public_key
    assert realm.generations == {"orders": 2}


def test_rights_lifetime_and_seeds_enter_the_credential() -> None:
    rights = Rights(publishes=("orders.>",), gateway=True)
    _, credential = issue_cluster(
        create_realm(ENTROPY),
        "orders",
        entropy=ENTROPY,
        wall_now=WALL,
        rights=rights,
        lifetime=DAY,
        seeds=("tcp://a:1",),
    )
    assert credential.certificate.rights == rights
    assert credential.expires == WALL + DAY
    assert summarize(credential) == CredentialSummary(
        cluster="orders",
        realm=credential.realm_id,
        sealed=False,
        generation=1,
        not_before=int(WALL - 300),
        expires=int(WALL + DAY),
        rights=rights,
        gate_secrets=1,
        realms=(),
        node=None,
        seeds=("tcp://a:1",),
    )


def test_a_summary_of_a_sealed_credential_names_its_node() -> None:
    _, (credential,) = realm_with("orders")
    sealed = seal_credential(credential, entropy=ENTROPY, not_before=WALL, not_after=WALL + DAY)
    node = summarize(sealed).node
    assert node is not None
    assert sealed.new_identity(ENTROPY, WALL).node_id.startswith(node)


@pytest.mark.parametrize("name", ["", "no/name"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a cluster name"):
        issue_cluster(create_realm(ENTROPY), name, entropy=ENTROPY, wall_now=WALL)


def test_refreshing_keeps_the_key_and_begins_the_validity_anew() -> None:
    realm, (credential,) = realm_with("orders")
    later = WALL + 100 * DAY
    fresh = refresh_credential(realm, credential, wall_now=later)
    assert isinstance(fresh.keys, SigningKey)
    assert fresh.certificate.public_key == credential.certificate.public_key
    assert fresh.certificate.generation == 1
    assert fresh.expires == later + CERTIFICATE_LIFETIME
    narrower = refresh_credential(realm, credential, wall_now=WALL, rights=Rights(publishes=()), lifetime=DAY)
    assert narrower.certificate.rights.publishes == ()
    assert narrower.expires == WALL + DAY


def test_a_sealed_credential_is_refreshed_with_gate_secrets_only() -> None:
    realm, (credential,) = realm_with("orders")
    sealed = seal_credential(credential, entropy=ENTROPY, not_before=WALL, not_after=WALL + DAY)
    fresh = refresh_credential(add_gate_secret(realm, ENTROPY), sealed, wall_now=WALL)
    assert len(fresh.gate_secrets) == 2
    assert fresh.expires == sealed.expires
    with pytest.raises(ConfigError, match="seal a refreshed portable one again"):
        refresh_credential(realm, sealed, wall_now=WALL, lifetime=DAY)


def test_credentials_of_another_realm_are_not_refreshed() -> None:
    _, (credential,) = realm_with("orders")
    with pytest.raises(ConfigError, match="of realm"):
        refresh_credential(create_realm(ENTROPY), credential, wall_now=WALL)


# -- rotation -------------------------------------------------------------------------------------------------


def test_while_the_gate_secret_is_rotated_any_two_nodes_of_neighbouring_steps_meet() -> None:
    realm, credentials = realm_with("orders", "billing")
    steps = [realm]
    steps.append(add_gate_secret(steps[-1], ENTROPY))
    steps.append(use_new_gate_secret(steps[-1]))
    steps.append(drop_old_gate_secret(steps[-1]))
    running = [credential.new_identity(ENTROPY, WALL) for credential in credentials]
    identities: list[list[NodeIdentity]] = []
    for step in steps:
        fresh = [refresh_credential(step, credential, wall_now=WALL) for credential in credentials]
        identities.append([c.renew_identity(identity, WALL) for c, identity in zip(fresh, running, strict=True)])
    for first, second in itertools.product(range(4), repeat=2):
        if abs(first - second) <= 1:
            meet(identities[first][0], identities[second][1])
    with pytest.raises(AuthenticationError, match="gate secret"):
        meet(identities[0][0], identities[3][1])
    with pytest.raises(AuthenticationError, match="gate secret"):
        meet(identities[3][0], identities[0][1])


def test_the_steps_of_a_rotation_come_in_order() -> None:
    realm = create_realm(ENTROPY)
    for step in (use_new_gate_secret, drop_old_gate_secret):
        with pytest.raises(ConfigError, match="begin the rotation first"):
            step(realm)
    with pytest.raises(ConfigError, match="being rotated already"):
        add_gate_secret(add_gate_secret(realm, ENTROPY), ENTROPY)
    added = add_gate_secret(realm, ENTROPY)
    with pytest.raises(ConfigError, match="take the step 'use' first"):
        drop_old_gate_secret(added)
    with pytest.raises(ConfigError, match="used already"):
        use_new_gate_secret(use_new_gate_secret(added))
    done = drop_old_gate_secret(use_new_gate_secret(added))
    assert done.gate_secrets == added.gate_secrets[1:]
    assert drop_old_gate_secret(use_new_gate_secret(add_gate_secret(done, ENTROPY))).gate_secrets != done.gate_secrets


def test_both_generations_of_a_cluster_meet_until_the_old_one_is_revoked() -> None:
    realm, (old, other) = realm_with("orders", "billing")
    realm, new = issue_cluster(realm, "orders", entropy=ENTROPY, wall_now=WALL)
    nodes = [credential.new_identity(ENTROPY, WALL) for credential in (old, new, other)]
    for dialler, listener in itertools.permutations(nodes, 2):
        meet(dialler, listener)
    _, revocations = revoke_cluster(realm, "orders", wall_now=WALL, below=2)
    assert [revocations.reason(node.public()) is None for node in nodes] == [False, True, True]


# -- revocation -----------------------------------------------------------------------------------------------


def test_revoking_a_cluster_revokes_all_generations_there_are() -> None:
    realm, (credential,) = realm_with("orders")
    realm, revocations = revoke_cluster(realm, "orders", wall_now=WALL)
    assert revocations.clusters == {"orders": 2}
    with pytest.raises(ConfigError, match="generation 1 of cluster 'orders' is revoked"):
        refresh_credential(realm, credential, wall_now=WALL)
    realm, fresh = issue_cluster(realm, "orders", entropy=ENTROPY, wall_now=WALL)
    assert revocations.reason(fresh.new_identity(ENTROPY, WALL).public()) is None


def test_each_list_has_a_higher_number_and_holds_all_that_was_revoked() -> None:
    realm, _ = realm_with("orders", "billing")
    realm, first = revoke_cluster(realm, "orders", wall_now=WALL)
    realm, second = revoke_node(realm, "ab" * 16, wall_now=WALL)
    realm, third = revoke_cluster(realm, "billing", wall_now=WALL)
    assert [r.number for r in (first, second, third)] == [1, 2, 3]
    assert third.clusters == {"orders": 2, "billing": 2}
    assert set(third.nodes) == {"ab" * 16}


def test_the_lowest_accepted_generation_never_goes_down() -> None:
    realm, _ = realm_with("orders")
    realm, _ = revoke_cluster(realm, "orders", wall_now=WALL)
    realm, revocations = revoke_cluster(realm, "orders", wall_now=WALL, below=1)
    assert revocations.clusters == {"orders": 2}


@pytest.mark.parametrize(("name", "below"), [("unknown", None), ("orders", 99)])
def test_what_was_never_certified_is_not_revoked(name: str, below: int | None) -> None:
    realm, _ = realm_with("orders")
    with pytest.raises(ConfigError):
        revoke_cluster(realm, name, wall_now=WALL, below=below)


@pytest.mark.parametrize("node", ["", "xyz", "ab", "ab" * 17, "AB" * 16])
def test_only_node_ids_or_their_first_halves_are_revoked(node: str) -> None:
    with pytest.raises(ConfigError, match="is not a node id"):
        revoke_node(create_realm(ENTROPY), node, wall_now=WALL)


def test_a_node_stays_listed_for_ever_or_until_its_delegation_has_ended_for_good() -> None:
    realm, _ = realm_with("orders")
    realm, _ = revoke_node(realm, "ab" * 16, wall_now=WALL)
    realm, _ = revoke_node(realm, "cd" * 8, wall_now=WALL)
    realm, soon = revoke_node(realm, "12" * 16, wall_now=WALL + DAY, until=WALL + 3 * DAY)
    assert set(soon.nodes) == {"ab" * 16, "cd" * 8, "12" * 16}
    realm, later = revoke_cluster(realm, "orders", wall_now=WALL + 2 * DAY)
    assert set(later.nodes) == {"ab" * 16, "cd" * 8, "12" * 16}
    _, years_later = revoke_cluster(realm, "orders", wall_now=WALL + 4000 * DAY)
    assert set(years_later.nodes) == {"ab" * 16, "cd" * 8}, "a running node would renew its delegation, and be back"


# -- check ----------------------------------------------------------------------------------------------------


def test_a_good_credential_has_no_findings() -> None:
    realm, (credential,) = realm_with("orders")
    _, revocations = revoke_node(realm, "ab" * 16, wall_now=WALL)
    assert check_credential(credential, wall_now=WALL, revocations=revocations) == ()


def test_findings_say_what_to_do() -> None:
    realm, (credential,) = realm_with("orders")
    sealed = seal_credential(credential, entropy=ENTROPY, not_before=WALL, not_after=WALL + 30 * DAY)
    rotating = refresh_credential(add_gate_secret(realm, ENTROPY), sealed, wall_now=WALL)
    realm, _ = revoke_cluster(realm, "orders", wall_now=WALL)
    node = summarize(sealed).node
    assert node is not None
    _, revocations = revoke_node(realm, node, wall_now=WALL)
    faults = check_credential(rotating, wall_now=WALL + 20 * DAY, revocations=revocations)
    assert [(fault.kind, fault.text) for fault in faults] == [
        ("expires", "expires in 10.0 days: refresh or seal it again"),
        ("rotating", "holds two gate secrets: finish the rotation, then refresh it"),
        ("revoked", "generation 1 of cluster 'orders' is revoked"),
        ("revoked", f"node {node} is revoked"),
    ]
    (late,) = check_credential(sealed, wall_now=WALL + 31 * DAY)
    assert (late.kind, late.text) == ("expired", "expired 24.0 hours ago: refresh or seal it again")
    (early,) = check_credential(credential, wall_now=WALL - DAY)
    assert (early.kind, early.text) == ("early", "valid only in 23.9 hours: check the clock")
