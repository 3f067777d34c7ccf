"""Two views are compared with few bytes, and end up the same."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.swim.anti_entropy import (
    MAX_DIGEST,
    compared_untrusted,
    differing_buckets,
    digests,
    nodes_untrusted,
    pack_nodes,
    portions,
)
from iris.cluster.swim.gossip import MAX_SIGNATURES, Accusation
from iris.cluster.swim.records import MemberState
from iris.cluster.swim.view import View
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import kinds
from tests.support.membership import node, record
from tests.support.messages import arrived, fields_of

held = st.dictionaries(st.integers(1, 300), st.tuples(st.integers(1, 3), st.booleans()), max_size=12)


def view_of(entries: Mapping[int, tuple[int, bool]], own: int = 0) -> View:
    """Return a view of members by number: (incarnation, dead)."""
    view = View(record(own))
    for number, (incarnation, dead) in entries.items():
        member = view.add(record(number, incarnation=incarnation), 0.0)
        if dead:
            view.bury(member, MemberState.DEAD, 0.0)
    return view


@given(held, held)
def test_a_comparison_finds_every_difference_and_nothing_else(
    ours: dict[int, tuple[int, bool]], theirs: dict[int, tuple[int, bool]]
) -> None:
    one, other = view_of(ours), view_of(theirs)
    wanted: set[str] = set()
    offered: set[str] = set()
    contradicted: set[str] = set()
    for buckets, entries in digests(other, differing_buckets(other, one.hashes())):
        found = compared_untrusted(one, buckets, entries)
        wanted.update(found.wanted)
        offered.update(found.offered)
        contradicted.update(node for node, _ in found.contradicted)
    for number in {*ours, *theirs}:
        mine, other_ones = ours.get(number), theirs.get(number)
        their = None if other_ones is None or other_ones[1] else other_ones[0]
        name = node(number)
        assert (name in wanted) == (their is not None and (mine is None or their > mine[0]))
        assert (name in contradicted) == (their is not None and mine is not None and mine[1] and their <= mine[0])
        assert (name in offered) == (mine is not None and not mine[1] and (their is None or their < mine[0]))


def test_equal_views_cost_one_message() -> None:
    entries = dict.fromkeys(range(1, 50), (1, False))
    one, other = view_of(entries), view_of(entries)
    assert differing_buckets(other, one.hashes()) == b""
    assert list(digests(other, b"")) == []


def test_who_left_is_offered_to_those_that_hold_it_live() -> None:
    one, other = view_of({1: (1, False)}), view_of({1: (1, False)})
    member = one.find(node(1))
    assert member is not None
    member.record = record(1, incarnation=2, leaving=True)
    one.bury(member, MemberState.LEFT, 0.0)
    ((buckets, entries),) = digests(other, differing_buckets(other, one.hashes()))
    assert compared_untrusted(one, buckets, entries).offered == [node(1)]


def test_digests_of_ten_thousand_are_bounded_and_complete() -> None:
    view = view_of(dict.fromkeys(range(1, 10000), (1, False)))
    messages = list(digests(view, range(256)))
    assert all(len(entries) <= MAX_DIGEST for _, entries in messages)
    assert b"".join(buckets for buckets, _ in messages) == bytes(range(256))
    assert sum(len(entries) for _, entries in messages) == 24 * 10_000


@pytest.mark.parametrize(
    ("buckets", "entries"),
    [
        (b"\x01", b"x"),
        (b"\x01", struct.pack(">16sQ", bytes.fromhex(node(2)), 1)),
        (b"\x01", struct.pack(">16sQ", bytes.fromhex(node(1)), 2**63)),
        (b"\x01", bytes(MAX_DIGEST + 24)),
        (bytes(257), b""),
        (None, b""),
        (b"", ()),
    ],
)
def test_malformed_digests_are_refused(buckets: object, entries: object) -> None:
    with pytest.raises(RemoteProtocolError):
        compared_untrusted(view_of({}), *fields_of(arrived(kinds.Digest, buckets, entries)))


@pytest.mark.parametrize("hashes", [b"", bytes(2047), bytes(2049), "x" * 2048, None])
def test_malformed_hashes_are_refused(hashes: object) -> None:
    with pytest.raises(RemoteProtocolError):
        arrived(kinds.Sync, hashes)


@pytest.mark.parametrize("packed", [bytes(15), bytes(MAX_DIGEST + 16), None, ()])
def test_malformed_lists_of_nodes_are_refused(packed: object) -> None:
    with pytest.raises(RemoteProtocolError):
        nodes_untrusted(arrived(kinds.Wanted, packed).nodes)


def test_lists_of_nodes_come_in_pieces() -> None:
    nodes = [node(number) for number in range(7000)]
    pieces = list(pack_nodes(nodes))
    assert [len(piece) for piece in pieces] == [MAX_DIGEST, MAX_DIGEST, 16 * 7000 - 2 * MAX_DIGEST]
    assert [one for piece in pieces for one in nodes_untrusted(piece)] == nodes


def test_portions_fit_a_message_in_bytes_and_number() -> None:
    records = [record(number) for number in range(500)]
    parts = list(portions(records, 2000))
    assert [one for part in parts for one in part] == records
    assert all(sum(update.size for update in part) <= 2000 for part in parts)
    hints = [Accusation(node=node(number), incarnation=1) for number in range(MAX_SIGNATURES + 1)]
    assert [len(part) for part in portions(hints, 10**9)] == [MAX_SIGNATURES, 1]
    assert [len(part) for part in portions(records, 10**9)] == [80] * 6 + [20], "a record is three signatures"
