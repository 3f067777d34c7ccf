"""The shape of a publisher's tree, and the messages that carry it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.pubsub.tree.topology import (
    CARRIED,
    MAX_CHILDREN,
    MAX_PLACES,
    Child,
    RelayedEvents,
    TreeRole,
    TreeShape,
    packed_mask,
    role_untrusted,
    shaped,
)
from tests.support.messages import array, arrived, fields_of, raw


def nodes(count: int, letter: str = "a") -> list[NodeId]:
    return [NodeId(f"{letter}{number:031x}") for number in range(count)]


PUBLISHER = NodeId("5" * 32)


def descend(shape: TreeShape, child: Child, depth: int = 1) -> dict[NodeId, int]:
    """Return every node at and behind one, with the number of hops to it."""
    found = {child.node: depth}
    for below in shape.places[child.node].children:
        behind = descend(shape, below, depth + 1)
        assert not behind.keys() & found.keys(), "a node has two ways"
        found |= behind
    return found


@given(st.lists(st.integers(0, 120), min_size=1, max_size=4), st.integers(1, 12))
def test_every_node_has_one_way_and_those_behind_it_are_what_its_mask_says(sizes: list[int], fan_out: int) -> None:
    classes = [nodes(size, letter) for size, letter in zip(sizes, "abcd", strict=False)]
    shape = shaped(PUBLISHER, classes, fan_out) if sum(sizes) else TreeShape((), {})
    assert set(shape.places) == {node for ring in classes for node in ring}
    assert sorted(place.bit for place in shape.places.values()) == [1 << number for number in range(sum(sizes))]
    reached: dict[NodeId, int] = {}
    for child in shape.top:
        reached |= descend(shape, child)
        rights = {node[0] for node in descend(shape, child)}
        assert len(rights) == 1, "a node hands on what it may not hear itself"
    assert reached.keys() == shape.places.keys()
    for node, place in shape.places.items():
        behind = descend(shape, Child(node, place.mask))
        assert place.mask == sum(shape.places[one].bit for one in behind)
        assert len(place.children) <= fan_out
    assert len(shape.top) <= fan_out + len(classes)


def test_a_hundred_nodes_are_two_hops_away_and_the_publisher_tells_ten() -> None:
    shape = shaped(PUBLISHER, [nodes(100)], 10)
    assert len(shape.top) == 10
    assert max(hops for child in shape.top for hops in descend(shape, child).values()) == 2


def test_the_work_falls_to_others_for_each_publisher() -> None:
    ring = nodes(100)
    tops = {shaped(publisher, [ring], 10).top[0].node for publisher in ring[::10]}
    assert len(tops) == 10


# -- messages ------------------------------------------------------------------------------------------------

ROLE = TreeRole(7, 1, (Child(NodeId("a" * 32), 0b110), Child(NodeId("b" * 32), 0b1000)))
RELAYED = RelayedEvents(PUBLISHER, 7, 3, 0b1011, b"body", b"s" * 64)


@given(st.integers(0, (1 << MAX_PLACES) - 1))
def test_a_set_of_places_comes_back_as_it_was(mask: int) -> None:
    assert int.from_bytes(packed_mask(mask)) == mask


def test_no_node_has_more_children_than_nodes_take() -> None:
    shape = shaped(PUBLISHER, [nodes(MAX_PLACES)], 1000)
    assert max(len(place.children) for place in shape.places.values()) <= MAX_CHILDREN
    children = tuple(Child(NodeId(f"{number:032x}"), 2 << number) for number in range(MAX_CHILDREN))
    assert role_untrusted(TreeRole(1, 1, children).message()[0]).children == children


def test_messages_come_back_as_they_were() -> None:
    assert role_untrusted(ROLE.message()[0]) == ROLE
    assert RelayedEvents.of(RELAYED.message()[0]) == RELAYED


@pytest.mark.parametrize(
    "change",
    [
        {1: 0},
        {1: "7"},
        {1: 2**63},
        {2: b""},
        {2: b"\x03"},
        {2: 1},
        {2: b"\x01" + bytes(512)},
        {3: None},
        {3: ((b"a" * 16,),)},
        {3: ((b"a" * 15, b"\x02"),)},
        {3: ((b"a" * 16, b""),)},
        {3: ((b"a" * 16, b"\x01"),)},
        {3: ((b"a" * 16, b"\x02"), (b"b" * 16, b"\x02"))},
        {3: ((b"a" * 16, b"\x02"), (b"a" * 16, b"\x04"))},
        {3: tuple((bytes([n]) * 16, packed_mask(2 << n)) for n in range(1, MAX_CHILDREN + 2))},
        {3: ((b"a" * 16, 2),)},
    ],
)
def test_a_malformed_place_in_a_tree_is_refused(change: dict[int, object]) -> None:
    fields = list(fields_of(ROLE.message()[0]))
    for index, value in change.items():
        fields[index - 1] = value
    with pytest.raises(RemoteProtocolError):
        role_untrusted(arrived(kinds.EventTree, *fields))


@pytest.mark.parametrize(
    "change",
    [{1: b"x"}, {1: "x"}, {2: 0}, {2: None}, {3: -1}, {3: True}, {4: "x"}, {4: bytes(513)}, {5: "x"}, {6: b"x"}],
)
def test_malformed_relayed_events_are_refused(change: dict[int, object]) -> None:
    fields = list(fields_of(RELAYED.message()[0]))
    for index, value in change.items():
        fields[index - 1] = value
    with pytest.raises(RemoteProtocolError):
        arrived(kinds.EventsRelayed, *fields)


EVENTS = kinds.Events("t", 1, 0, None, None, None, (b"x",), ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        wire.pack(5),
        wire.encode_batch([EVENTS, array(5)]),
        wire.encode_batch([raw(kinds.Events, *fields_of(EVENTS)[:-1])]),
        wire.encode_batch([kinds.Request(1, "c", None, 1, 0, None, b"x")]),
        wire.encode_batch([array("0x42", "t")]),
        wire.encode_batch([array()]),
    ],
)
def test_a_body_with_anything_but_events_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        CARRIED.decode_untrusted(body)


def test_a_body_with_events_comes_back_as_it_was() -> None:
    known = kinds.InterestKnown(4, 0)
    assert CARRIED.decode_untrusted(wire.encode_batch([EVENTS, known])) == [EVENTS, known]


def test_nothing_of_what_is_signed_can_be_changed() -> None:
    """Every field of a relayed message but the signature is in its claim."""
    changed = [
        RELAYED,
        RELAYED._replace(publisher=NodeId("6" * 32)),
        RELAYED._replace(tree=8),
        RELAYED._replace(number=4),
        RELAYED._replace(mask=0b1010),
        RELAYED._replace(body=b"bodY"),
    ]
    assert len({relayed.claim for relayed in changed}) == len(changed)
