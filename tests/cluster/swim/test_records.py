"""Records: their form on the wire, their limits, and the order by which they merge."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from iris.cluster.swim.records import MAX_CLUSTERS, ClusterEntry, NodeRecord, precedes, record_untrusted
from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import MAX_NUMBER
from tests.support.membership import node, record
from tests.support.messages import arrived, fields_of, raw

FULL = NodeRecord(
    node=node(7),
    incarnation=3,
    name="databases",
    proof=b"chain",
    site="eu-1",
    addresses=("tcp://10.0.0.1:7400", "ws://host:80/x"),
    clusters=(ClusterEntry(name="databases"), ClusterEntry(name="caches", proof=b"other", draining=True)),
    interest_version=9,
    leaving=False,
    signature=b"signature",
)

names = st.text("abc.-_9", min_size=1, max_size=8)
records = st.builds(
    NodeRecord,
    node=st.just(node(1)),
    incarnation=st.integers(0, 3),
    name=names,
    proof=st.binary(max_size=4),
    site=st.one_of(st.just(""), names),
    addresses=st.lists(st.sampled_from(["tcp://a:1", "tcp://b:2"]), max_size=2).map(tuple),
    interest_version=st.integers(0, 2),
    leaving=st.booleans(),
)


def test_a_record_comes_out_of_the_wire_as_it_went_in() -> None:
    assert record_untrusted(arrived(kinds.Join, FULL.as_update()).record) == FULL


@given(records)
def test_the_size_of_a_record_is_not_below_its_bytes_on_the_wire(one: NodeRecord) -> None:
    assert one.size >= len(wire.encode_batch([one.as_update()])) - 1


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, b"short"),
        (0, node(7)),
        (1, -1),
        (1, MAX_NUMBER + 1),
        (1, True),
        (1, 1.0),
        (2, ""),
        (2, "a/b"),
        (2, "x" * 129),
        (3, bytes(4096 + 1)),
        (3, "text"),
        (4, "no site"),
        (5, ("",)),
        (5, ("tcp://\n:1",)),
        (5, ("tcp://é:1",)),
        (5, ("x" * 257,)),
        (5, ("tcp://a:1",) * 17),
        (5, b"tcp://a:1"),
        (6, (("a", b""),)),
        (6, (("a", b"", 1),)),
        (6, (("a", b"", False), ("a", b"", True))),
        (6, tuple((f"c{number}", b"", False) for number in range(MAX_CLUSTERS + 1))),
        (6, tuple((f"c{number}", bytes(4096), False) for number in range(5))),
        (7, None),
        (8, 0),
        (9, bytes(129)),
    ],
)
def test_a_record_against_the_rules_is_refused(position: int, value: object) -> None:
    fields = list(fields_of(FULL.as_update()))
    fields[position] = value
    with pytest.raises(RemoteProtocolError):
        record_untrusted(arrived(kinds.Join, raw(kinds.RecordUpdate, *fields)).record)


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        b"",
        (),
        raw(kinds.RecordUpdate, *fields_of(FULL.as_update())[:-1]),
        raw(kinds.RecordUpdate, *fields_of(FULL.as_update()), 1),
    ],
)
def test_what_is_no_record_is_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        record_untrusted(arrived(kinds.Join, value).record)


def test_every_field_but_the_signature_is_signed() -> None:
    other = structs.replace(FULL, signature=b"another")
    assert other.statement() == FULL.statement()
    changes: list[dict[str, object]] = [
        {"node": node(8)},
        {"incarnation": 4},
        {"name": "caches"},
        {"proof": b""},
        {"site": "eu-2"},
        {"addresses": FULL.addresses[:1]},
        {"clusters": FULL.clusters[:1]},
        {"clusters": (FULL.clusters[0], structs.replace(FULL.clusters[1], draining=False))},
        {"interest_version": 10},
        {"leaving": True},
    ]
    statements = {structs.replace(FULL, **change).statement() for change in changes}
    assert len(statements | {FULL.statement()}) == len(changes) + 1


def test_fields_do_not_run_into_each_other() -> None:
    one = structs.replace(FULL, name="ab", proof=b"c")
    other = structs.replace(FULL, name="a", proof=b"bc")
    assert one.statement() != other.statement()


def merged(held: NodeRecord, heard: NodeRecord) -> NodeRecord:
    return heard if precedes(held, heard) else held


@given(st.lists(records, min_size=1, max_size=5))
def test_any_order_and_any_repetition_of_records_ends_in_the_same_one(some: list[NodeRecord]) -> None:
    results = {
        functools.reduce(merged, order).statement()
        for order in itertools.chain(itertools.permutations(some), [[*some, *reversed(some)]])
    }
    assert len(results) == 1


@given(records, records)
def test_of_two_records_that_differ_exactly_one_precedes_the_other(one: NodeRecord, other: NodeRecord) -> None:
    assert precedes(one, other) + precedes(other, one) == (one.statement() != other.statement())


def test_a_farewell_outlives_another_word_of_the_same_incarnation() -> None:
    alive, leaving = record(1, site="zzz"), record(1, leaving=True)
    assert merged(alive, leaving) == leaving == merged(leaving, alive)
