from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import AuthenticationError, ConfigError
from iris.kernel.wire.codec import pack
from iris.security.files.realm_files import load_revocations, save_revocations
from iris.security.identity import signing
from iris.security.identity.revocation import (
    MAX_ENTRIES,
    MAX_LIST,
    NewestRevocations,
    RevocationList,
    issue_revocations,
    read_revocations_untrusted,
)
from iris.security.identity.signing import SigningKey
from tests.support.realms import WALL, TestRealm, seeded_entropy
from tests.support.sessions import finish, start

REALM = TestRealm()
ROOT = REALM.root
ORDERS, BILLING = REALM.identity("orders"), REALM.identity("billing")


def revocations(
    number: int = 1,
    *,
    clusters: dict[str, int] | None = None,
    nodes: dict[str, int] | None = None,
    issued: float = WALL,
    root: SigningKey = ROOT,
) -> RevocationList:
    return issue_revocations(root, number=number, issued=issued, clusters=clusters or {}, nodes=nodes or {})


def test_what_was_issued_is_read_back() -> None:
    issued = revocations(7, clusters={"orders": 2, "a": 1}, nodes={"ab" * 16: 5, "cd" * 8: 9})
    read = read_revocations_untrusted(issued.signed, ROOT.public)
    assert read == issued
    assert (read.number, read.issued) == (7, WALL)
    assert read.clusters == {"a": 1, "orders": 2}
    assert read.nodes == {"ab" * 16: 5, "cd" * 8: 9}


def test_a_revoked_generation_is_refused_and_the_next_one_is_not() -> None:
    assert ORDERS.certificate.generation == 1
    assert revocations(clusters={"orders": 1}).reason(ORDERS.public()) is None
    reason = revocations(clusters={"orders": 2}).reason(ORDERS.public())
    assert reason == "generation 1 of cluster 'orders' is revoked"
    assert revocations(clusters={"orders": 2}).reason(BILLING.public()) is None


def test_a_revoked_node_is_refused_by_its_id_or_the_first_half_of_it() -> None:
    for node in (ORDERS.node_id, ORDERS.node_id[:16]):
        listed = revocations(nodes={node: 1})
        assert listed.reason(ORDERS.public()) == f"node {ORDERS.node_id} of cluster 'orders' is revoked"
        assert listed.reason(BILLING.public()) is None


@pytest.mark.parametrize("side", ["dials", "answers"])
def test_a_handshake_with_a_revoked_node_fails_on_either_side(side: str) -> None:
    known = NewestRevocations(ROOT.public)
    known.receive_untrusted(revocations(clusters={"orders": 2}).signed)
    dialler, listener = (ORDERS, BILLING) if side == "dials" else (BILLING, ORDERS)
    initiator, responder = start(dialler, listener, admit=known.check)
    with pytest.raises(AuthenticationError, match="generation 1 of cluster 'orders' is revoked"):
        finish(initiator, responder)


def test_an_older_list_is_refused() -> None:
    known = NewestRevocations(ROOT.public)
    assert known.number == 0
    newer, older = revocations(2, clusters={"orders": 2}), revocations(1)
    assert known.receive_untrusted(newer.signed)
    assert not known.receive_untrusted(older.signed)
    assert not known.receive_untrusted(newer.signed)
    assert known.current == newer
    assert known.number == 2
    assert known.reason(ORDERS.public()) is not None
    assert (known.taken, known.not_newer) == (1, 2)


def test_an_older_list_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "revocations"
    assert load_revocations(path, ROOT.public) is None
    known = NewestRevocations(ROOT.public, load_revocations(path, ROOT.public))
    known.receive_untrusted(revocations(2, clusters={"orders": 2}).signed)
    assert known.current is not None
    save_revocations(path, known.current)

    restarted = NewestRevocations(ROOT.public, load_revocations(path, ROOT.public))
    assert restarted.current == known.current
    assert not restarted.receive_untrusted(revocations(1).signed)
    with pytest.raises(AuthenticationError):
        restarted.check(ORDERS.public())


def test_any_order_of_arrival_ends_at_the_same_list() -> None:
    lists = [
        revocations(1),
        revocations(2, clusters={"a": 1}),
        revocations(2, clusters={"b": 1}),
        revocations(2, issued=WALL + 1),
    ]
    ends: set[bytes] = set()
    for order in itertools.permutations(lists):
        known = NewestRevocations(ROOT.public)
        for received in order:
            known.receive_untrusted(received.signed)
        assert known.current is not None
        ends.add(known.current.signed)
    assert ends == {lists[3].signed}


def test_of_lists_with_one_number_and_time_every_node_keeps_the_same_one() -> None:
    lists = [revocations(2, clusters={name: 1}).signed for name in ("a", "b", "c")]
    kept: set[bytes] = set()
    for order in itertools.permutations(lists):
        known = NewestRevocations(ROOT.public)
        assert [known.receive_untrusted(order[0]), known.receive_untrusted(order[0])] == [True, False]
        newer = [known.receive_untrusted(received) for received in order[1:]]
        assert (known.taken, known.not_newer) == (1 + sum(newer), 3 - sum(newer))
        assert known.current is not None
        assert not known.current.supersedes(known.current)
        kept.add(known.current.signed)
    assert len(kept) == 1


def test_a_list_of_another_realm_is_refused() -> None:
    known = NewestRevocations(ROOT.public)
    with pytest.raises(AuthenticationError, match="signature"):
        known.receive_untrusted(revocations(root=SigningKey(seeded_entropy(9)(32))).signed)
    with pytest.raises(AuthenticationError, match="signature"):
        known.receive_untrusted(ORDERS.certificate.signed)
    assert known.current is None


def test_every_byte_counts() -> None:
    signed = revocations(clusters={"orders": 2}, nodes={"ab" * 16: 5}).signed
    for position in range(len(signed)):
        damaged = bytearray(signed)
        damaged[position] ^= 1
        with pytest.raises(AuthenticationError):
            read_revocations_untrusted(bytes(damaged), ROOT.public)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        (),
        (1, 1, 1, ()),
        (2, 1, 1, (), ()),
        (1, 0, 1, (), ()),
        (1, "1", 1, (), ()),
        (1, 1, 1, None, ()),
        (1, 1, 1, (), 5),
        (1, 1, 1, ("orders",), ()),
        (1, 1, 1, (("orders", -1),), ()),
        (1, 1, 1, (("no/name", 1),), ()),
        (1, 1, 1, (("orders", 1, 1),), ()),
        (1, 1, 1, (), ((bytes(7), 1),)),
        (1, 1, 1, (), ((bytes(16), "1"),)),
        (1, 1, 1, (), (("x" * 16, 1),)),
    ],
)
def test_a_signed_list_of_another_shape_is_refused(fields: object) -> None:
    with pytest.raises(AuthenticationError):
        read_revocations_untrusted(ROOT.attach(signing.REVOCATION, pack(fields)), ROOT.public)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_an_authentication_error_even_if_signed(data: bytes) -> None:
    for signed in (data, ROOT.attach(signing.REVOCATION, data)):
        with pytest.raises(AuthenticationError):
            NewestRevocations(ROOT.public).receive_untrusted(signed)


def test_the_largest_list_is_within_the_limit_on_bytes() -> None:
    rng = random.Random(1)
    clusters = {f"{number:0128d}": 2**40 for number in range(MAX_ENTRIES)}
    nodes = {rng.randbytes(16).hex(): 2**40 for _ in range(MAX_ENTRIES)}
    signed = revocations(clusters=clusters, nodes=nodes).signed
    assert MAX_LIST / 2 < len(signed) < MAX_LIST
    with pytest.raises(ConfigError, match="the limit is 1024 of each"):
        revocations(clusters=clusters | {"one.more": 1})
    with pytest.raises(ConfigError, match="the limit is 1024 of each"):
        revocations(nodes=nodes | {"ab" * 16: 1})


def test_a_list_above_the_limit_is_refused_before_anything_else() -> None:
    with pytest.raises(AuthenticationError, match="the limit is"):
        read_revocations_untrusted(bytes(MAX_LIST + 1), ROOT.public)


@pytest.mark.parametrize("wrong", [{"clusters": {"no/name": 1}}, {"clusters": {"a": -1}}, {"nodes": {"abcd": 1}}])
def test_entries_that_are_none_are_not_issued(wrong: dict[str, dict[str, int]]) -> None:
    with pytest.raises(ConfigError, match="an entry is neither"):
        revocations(**wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_kept_file_that_is_damaged_or_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "revocations"
    save_revocations(path, revocations())
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="run: chmod 600"):
        load_revocations(path, ROOT.public)
    path.chmod(0o600)
    path.write_bytes(revocations().signed[:-1])
    with pytest.raises(ConfigError, match="remove the file"):
        load_revocations(path, ROOT.public)
    path.unlink()
    path.symlink_to(tmp_path / "missing")
    with pytest.raises(ConfigError, match="is a symbolic link"):
        load_revocations(path, ROOT.public)
