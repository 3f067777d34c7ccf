"""Runs of events as they come from a peer, and each event as a subscriber has it in hand."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.messages import Sender
from iris.patterns.pubsub.interest.topics import MAX_TOPIC
from iris.patterns.pubsub.publish.retained import check_retained_untrusted
from iris.patterns.pubsub.subscribe.events import Event, EventRun, check_run_untrusted, payload_bytes
from tests.support.messages import arrived

SENDER = Sender("shop", NodeId("1" * 32))
PACKED = wire.encode_payload({"a": 1}, 1000)


def named(changes: dict[str, object]) -> str:
    """Return what a case is called in every process."""
    return re.sub(" object at [^>]*", "", str(changes))


def events_message(**changes: object) -> Any:
    fields: dict[str, object] = {
        "topic": "a.b",
        "sequence": 1,
        "confirm": 0,
        "group": None,
        "headers": None,
        "key": None,
        "payloads": (b"one", b"three"),
        "milestones": (),
    }
    return arrived(kinds.Events, *(fields | changes).values())


def retained_message(**changes: object) -> Any:
    fields: dict[str, object] = {
        "topic": "a.b",
        "last": 7,
        "sequence": 5,
        "headers": None,
        "key": None,
        "payload": b"value",
        "milestones": (4,),
    }
    return arrived(kinds.Retained, *(fields | changes).values())


@pytest.mark.parametrize(
    ("changes", "size", "plain"),
    [
        ({}, 8, True),
        ({"payloads": (b"",)}, 0, True),
        ({"payloads": (PACKED,)}, wire.payload_size(PACKED), False),
        ({"payloads": (b"xy", PACKED, b"z")}, 3 + wire.payload_size(PACKED), False),
        ({"topic": "x" * MAX_TOPIC}, 8, True),
        ({"sequence": 2**62 - 1, "confirm": 2**62 - 1, "group": "g", "key": "k"}, 8, True),
        ({"sequence": 15, "headers": ("a", "b"), "milestones": (9, 12, 14)}, 8, True),
        ({"payloads": (b"x",) * 1000}, 1000, True),
    ],
)
def test_a_run_is_measured_and_its_sort_told(changes: dict[str, object], size: int, plain: bool) -> None:
    assert check_run_untrusted(events_message(**changes)) == (size, plain)


def test_a_topic_is_checked_where_it_is_met_for_the_first_time() -> None:
    for known in ({"a.b"}, {"a.b.>"}, ()):
        message = events_message(topic="a.b.>")
        if "a.b.>" in known:
            assert check_run_untrusted(message, known) == (8, True)
        else:
            with pytest.raises(RemoteProtocolError):
                check_run_untrusted(message, known)
    with pytest.raises(RemoteProtocolError):
        check_run_untrusted(events_message(topic=None), ("a",))


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": None},
        {"topic": b"a"},
        {"topic": "x" * (MAX_TOPIC + 1)},
        {"sequence": 0},
        {"sequence": -1},
        {"sequence": 1.0},
        {"sequence": True},
        {"sequence": None},
        {"sequence": "1"},
        {"sequence": 2**62},
        {"sequence": 2**64 - 1},
        {"confirm": 2**62},
        {"confirm": 2**64 - 1},
        {"confirm": -1},
        {"confirm": None},
        {"confirm": False},
        {"group": 1},
        {"group": b"g"},
        {"key": 1},
        {"key": b"k"},
        {"key": "k" * 257},  # a bridge stores it with each event of the run
        {"payloads": ()},
        {"payloads": None},
        {"payloads": b"xyz"},
        {"payloads": ("text",)},
        {"payloads": (b"x", None)},
        {"payloads": (PACKED, 5)},
        {"payloads": ((b"x",),)},
        {"milestones": None},
        {"milestones": (1,)},
        {"milestones": (-1,)},
        {"milestones": (True,)},
        {"milestones": (2**62 + 1,)},
        {"milestones": (0, 5, 1)},
        {"milestones": (0, 0, 0, 1, 2)},
    ],
    ids=named,
)
def test_a_malformed_run_is_the_peers_error(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        check_run_untrusted(events_message(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": None},
        {"topic": "x" * (MAX_TOPIC + 1)},
        {"last": None},
        {"last": 4},
        {"last": "7"},
        {"last": 2**62 + 1},
        {"last": True},
        {"sequence": 0},
        {"sequence": 8},
        {"sequence": 5.0},
        {"sequence": True},
        {"sequence": None},
        {"key": 7},
        {"key": b"k"},
        {"payload": "text"},
        {"payload": None},
        {"payload": (b"x",)},
        {"milestones": None},
        {"milestones": (5,)},
    ],
    ids=named,
)
def test_a_malformed_last_value_is_the_peers_error(changes: dict[str, object]) -> None:
    assert check_retained_untrusted(retained_message()) == 5
    assert check_retained_untrusted(retained_message(payload=PACKED, key="k", sequence=7)) == wire.payload_size(PACKED)
    with pytest.raises(RemoteProtocolError):
        check_retained_untrusted(retained_message(**changes))


FIELDS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.just(PACKED),
    st.lists(st.binary(max_size=2) | st.none() | st.just(PACKED), max_size=3).map(tuple),
)


@given(st.tuples(*[FIELDS] * 7, FIELDS | st.just(())))
def test_any_fields_are_a_run_or_the_peers_error(fields: tuple[object, ...]) -> None:
    try:
        size, plain = check_run_untrusted(arrived(kinds.Events, *fields))
    except RemoteProtocolError:
        return
    topic, sequence, confirm = fields[:3]
    payloads: Any = fields[6]
    assert isinstance(topic, str)
    assert isinstance(sequence, int)
    assert sequence >= 1
    assert isinstance(confirm, int)
    assert plain == all(isinstance(payload, bytes) for payload in payloads)
    assert size == sum(map(payload_bytes, payloads))


@given(st.tuples(*[FIELDS] * 6, FIELDS | st.just(())))
def test_any_fields_are_a_last_value_or_the_peers_error(fields: tuple[object, ...]) -> None:
    try:
        size = check_retained_untrusted(arrived(kinds.Retained, *fields))
    except RemoteProtocolError:
        return
    payload: Any = fields[5]
    assert size == payload_bytes(payload)


# -- as subscribers see them ---------------------------------------------------------------------------------


def run(*, confirm: int = 0, plain: bool = True, payloads: tuple[wire.Payload, ...] = (b"x", b"y")) -> EventRun:
    events = kinds.Events("a.b", 5, confirm, None, None, "key", tuple(payloads), ())
    return EventRun(SENDER, events, {"h": "1"}, 2, plain=plain)


def test_an_event_shows_its_payload_and_what_it_shares_with_its_run() -> None:
    event = Event((b"x", 3, run(), 0))
    assert (event.payload, event.raw_payload) == (b"x", b"x")
    assert (event.topic, event.sender, event.publisher, event.key) == ("a.b", SENDER, SENDER.node, "key")
    assert event.headers == {"h": "1"}
    assert (event.missed, event.retained) == (3, False)
    assert repr(event) == "Event(topic='a.b', payload=b'x', missed=3)"


def test_an_event_whose_payload_was_decoded_still_has_it_as_it_came() -> None:
    event = Event(({"a": 1}, 0, run(plain=False, payloads=(b"x", PACKED)), 1))
    assert event.payload == {"a": 1}
    assert event.raw_payload is PACKED
    assert repr(event) == "Event(topic='a.b', payload={'a': 1}, missed=0)"


def test_confirmed_events_are_numbered_through_their_run_and_others_not_at_all() -> None:
    confirmed = run(confirm=100)
    assert [Event((b"x", 0, confirmed, place)).sequence for place in range(3)] == [100, 101, 102]
    assert [Event((b"x", 0, run(), place)).sequence for place in range(3)] == [0, 0, 0]


def test_the_events_of_a_run_taken_one_at_a_time_have_the_numbers_that_they_had() -> None:
    assert [(one.first, one.confirm, one.payloads) for one in run(confirm=100).each()] == [
        (5, 100, (b"x",)),
        (6, 101, (b"y",)),
    ]
    assert [one.confirm for one in run().each()] == [0, 0]


def test_what_was_thrown_out_of_a_run_is_not_left_in_it() -> None:
    events = run()
    assert (events.left, events.publisher) == (2, SENDER.node)
    events.next = 2
    assert events.left == 0


def test_a_subscriber_cannot_change_an_event_for_others() -> None:
    event = Event((b"x", 0, run(), 0))
    for name in ("payload", "missed", "topic", "key", "anything"):
        with pytest.raises(AttributeError):
            setattr(event, name, b"y")
    assert event.payload == b"x"


@pytest.mark.parametrize("payload", [b"", b"abc", PACKED])
def test_the_bytes_of_a_payload_are_those_it_has_on_the_wire(payload: wire.Payload) -> None:
    assert payload_bytes(payload) == wire.payload_size(payload)
