"""Frames, batches, payloads and headers: round trips, and bytes that somebody made up."""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict
from typing import Any

import msgpack
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from iris.kernel import wire
from iris.kernel.config import KIB, MIB
from iris.kernel.errors import LocalProtocolError, PayloadTooLarge, RemoteProtocolError
from iris.kernel.wire import Message, kinds
from tests.support.messages import array, arrays, arrived, decoded

LIMIT = MIB

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)
fields = st.recursive(
    scalars | st.binary(),
    lambda inner: st.lists(inner, max_size=5).map(tuple),
    max_leaves=10,
)
counts = st.integers(0, 2**62)
payloads = st.binary() | st.builds(Ext, st.just(1), st.binary())
messages = (
    st.builds(kinds.Ping, counts)
    | st.builds(kinds.Reset)
    | st.builds(kinds.Goodbye, st.text())
    | st.builds(kinds.Reply, counts, payloads)
    | st.builds(kinds.Confirmed, st.lists(st.tuples(counts, counts), max_size=5).map(tuple))
)


def batch_decoder() -> wire.BatchDecoder[Message]:
    return wire.BatchDecoder(*kinds.BY_KIND.values())


def peak_memory(call: Any, *arguments: Any) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            call(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# -- frame header ------------------------------------------------------------------------------------------


@given(
    kind=st.integers(1, 4),
    epoch=st.integers(0, 2**16 - 1),
    receiver=st.integers(0, 2**32 - 1),
    counter=st.integers(0, 2**64 - 1),
    body=st.binary(),
)
def test_a_header_comes_back_as_it_was_written(kind: int, epoch: int, receiver: int, counter: int, body: bytes) -> None:
    header = wire.HEADER.pack(kind, wire.VERSION, epoch, receiver, counter)
    assert len(header) == wire.HEADER_SIZE == 16
    assert wire.parse_header_untrusted(header + body) == (kind, 2, epoch, receiver, counter)
    assert wire.receiver_untrusted(header + body) == (receiver if kind == wire.DATA else None)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "no room"),
        (bytes(15), "no room"),
        (wire.HEADER.pack(wire.DATA, 1, 0, 1, 1), "version 1: this node speaks version 2"),
        (wire.HEADER.pack(wire.DATA, 0, 0, 1, 1), "version 0"),
        (wire.HEADER.pack(0, 2, 0, 1, 1), "kind of frame 0"),
        (wire.HEADER.pack(255, 2, 0, 1, 1), "kind of frame 255"),
        (wire.HEADER.pack(wire.DATA, 2, 0, 1, 1)[:15], "no room"),
    ],
)
def test_a_frame_that_is_not_one_is_refused(frame: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        wire.parse_header_untrusted(frame)
    assert wire.receiver_untrusted(frame) is None


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_one_error(frame: bytes) -> None:
    try:
        header = wire.parse_header_untrusted(frame)
    except RemoteProtocolError:
        assert wire.receiver_untrusted(frame) is None
        return
    assert wire.HEADER.pack(*header) == frame[:16]


# -- batches -----------------------------------------------------------------------------------------------


@given(st.lists(messages, max_size=40))
def test_a_batch_comes_back_as_it_was_encoded(batch: list[Message]) -> None:
    encoded = wire.encode_batch(batch)
    found = batch_decoder().decode_untrusted(encoded)
    assert list(map(type, found)) == list(map(type, batch))
    assert wire.encode_batch(found) == encoded


@pytest.mark.parametrize("count", [1, 15, 16, 512])
def test_a_batch_holds_so_many_messages(count: int) -> None:
    batch: list[Message] = [kinds.Ping(2)] * count
    assert batch_decoder().decode_untrusted(wire.encode_batch(batch)) == batch


@pytest.mark.parametrize("count", [513, 65535, 65536, 350_000])
def test_a_batch_of_more_messages_is_refused_and_costs_little_memory(count: int) -> None:
    decoder = batch_decoder()
    assert peak_memory(decoder.decode_untrusted, wire.encode_batch([kinds.Goodbye("")] * count)) < 3 * MIB
    assert decoder.decode_untrusted(wire.encode_batch([kinds.Ping(2)])) == [kinds.Ping(2)]


ELEMENTS: dict[str, Message] = {
    "pairs": kinds.Confirmed(((1, 1),) * 1000),
    "texts": kinds.Request(1, "c", None, 1, 0, ("ab",) * 1000, b""),
    "packed values": kinds.Events("t", 1, 0, None, None, None, (Ext(1, b"a"),) * 1000, ()),
    "binaries": kinds.Events("t", 1, 0, None, None, None, (b"ab",) * 1000, ()),
    "terms": kinds.Interest(1, True, (kinds.InterestEntry("a", None, False, False, ()),) * 1000, ()),
    "updates": kinds.Gossip((kinds.AccusationUpdate(bytes(16), 1),) * 500),
}


@pytest.mark.parametrize("what", ELEMENTS)
def test_a_batch_of_too_many_elements_is_refused_and_costs_little_memory(what: str) -> None:
    decoder, message = batch_decoder(), ELEMENTS[what]
    assert peak_memory(decoder.decode_untrusted, wire.encode_batch([message] * 200)) < 6 * MIB
    for _ in range(3):  # what was counted for one batch does not count for the next
        assert decoder.decode_untrusted(wire.encode_batch([message] * 4))


def test_elements_of_all_messages_of_a_batch_count() -> None:
    decoder = batch_decoder()
    message = kinds.Events("t", 1, 0, None, None, None, (b"abc",) * 1024, ())
    assert len(decoder.decode_untrusted(wire.encode_batch([message] * 32))) == 32
    with pytest.raises(RemoteProtocolError, match="more than 32768 elements"):
        decoder.decode_untrusted(wire.encode_batch([message] * 33))


@given(batch=st.lists(messages, min_size=1, max_size=5), data=st.data())
def test_a_batch_that_is_cut_off_is_refused(batch: list[Message], data: st.DataObject) -> None:
    whole = wire.encode_batch(batch)
    decoder = batch_decoder()
    with pytest.raises(RemoteProtocolError):
        decoder.decode_untrusted(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert len(decoder.decode_untrusted(whole)) == len(batch)


@given(st.binary(max_size=200))
@example(b"\xc0")
@example(b"\x90\x90")
def test_any_bytes_are_messages_or_one_error(junk: bytes) -> None:
    try:
        found = batch_decoder().decode_untrusted(junk)
    except RemoteProtocolError:
        return
    assert all(type(message) in kinds.BY_KIND.values() for message in found)


@pytest.mark.parametrize(
    "message",
    [
        b"\x80",
        b"\x91\x80",
        b"\x92\x01\x81\xa1a\x01",
        b"\x92\x01\xdf\x00\x10\x00\x00",
        b"\x90",
        b"\x01",
        b"\xc0",
        b"\x91\xc3",
        b"\x91\xa1a",
        b"\x91\x7f",
        b"\x91\x01",
        b"\x93\x01\x02\x03",
        b"\x92\x03\xa1\xff",
        b"\x92\x43\xdc\x04\x01" + b"\x92\x01\x01" * 1025,
        b"\x92\x01\xc1",
    ],
    ids=[
        "a map",
        "a map for a kind",
        "a map in a field",
        "a large map",
        "no kind",
        "no array",
        "nil",
        "a bool for a kind",
        "a text for a kind",
        "an unknown kind",
        "a field too few",
        "a field too many",
        "text that is not UTF-8",
        "a long array",
        "a byte that msgpack does not use",
    ],
)
def test_what_no_node_sends_is_refused(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed batch"):
        batch_decoder().decode_untrusted(b"\x92\x92\x01\x02" + message)


@pytest.mark.parametrize("later", [b"\x92\x7e\x01", b"\x91\x00", b"\xdc\x00\x01\x7e", b"\xdd\x00\x00\x00\x01\x7e"])
def test_messages_of_kinds_of_a_later_version_are_left_out_where_that_is_wanted(later: bytes) -> None:
    batch = b"\x94\x92\x01\x02" + later + b"\x92\x01\x03" + later
    unknown: set[int] = set()
    assert batch_decoder().decode_untrusted(batch, None, unknown) == [kinds.Ping(2), kinds.Ping(3)]
    assert unknown == ({0} if later == b"\x91\x00" else {0x7E})
    with pytest.raises(RemoteProtocolError, match="malformed batch"):
        batch_decoder().decode_untrusted(batch)


@pytest.mark.parametrize(
    "wrong", [b"\x92\x01\xc1", b"\x91\x01", b"\x90", b"\xc0", b"\x01", b"\x91\xcc\x80", b"\xdc\x00\x00", b"\x91"]
)
def test_beside_them_nothing_else_is_forgiven(wrong: bytes) -> None:
    for batch in (b"\x92\x91\x7e" + wrong, b"\x91" + wrong):
        with pytest.raises(RemoteProtocolError, match="malformed batch"):
            batch_decoder().decode_untrusted(batch, None, set())


@pytest.mark.parametrize(
    "header", [b"\xdc\x04\x00", b"\xdd\x00\x00\x04\x00", b"\x91", b"\x9f", b"\xdd\xff\xff\xff\xff"]
)
def test_nested_array_headers_cost_little_memory(header: bytes) -> None:
    bomb = header * (64 * KIB // len(header))
    assert peak_memory(batch_decoder().decode_untrusted, bomb) < 1 * MIB
    assert peak_memory(batch_decoder().decode_untrusted, b"\x91\x92\x43" + bomb) < 1 * MIB
    assert peak_memory(wire.unpack_untrusted, bomb) < 10 * MIB
    assert peak_memory(wire.decode_payload_untrusted, Ext(1, bomb)) < 1 * MIB


def test_a_claimed_length_costs_no_memory() -> None:
    for claim in (b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01"):
        for kind in (b"\x92\x03", b"\x92\x05", b"\x93\x21\x01"):
            assert peak_memory(batch_decoder().decode_untrusted, b"\x91" + kind + claim) < 128 * KIB
        assert peak_memory(wire.unpack_untrusted, claim) < 64 * KIB
        assert peak_memory(wire.decode_payload_untrusted, Ext(1, claim)) < 64 * KIB


# -- values of our own -------------------------------------------------------------------------------------


@given(fields)
def test_a_packed_value_comes_back(value: object) -> None:
    assert wire.unpack_untrusted(wire.pack(value)) == value


@given(st.binary(max_size=100))
@example(b"\xc0\xc0\x93")  # surplus that looks like an end
@example(b"\xc0\xc0")
@example(b"")
def test_any_bytes_are_exactly_one_value_or_one_error(junk: bytes) -> None:
    try:
        value = wire.unpack_untrusted(junk)
    except RemoteProtocolError:
        return
    reference = msgpack.unpackb(junk, use_list=False, strict_map_key=False)  # raises for surplus bytes
    assert repr(value) == repr(reference)


def test_arrays_of_a_value_may_be_longer_where_the_caller_says_so() -> None:
    value = tuple(range(2000))
    with pytest.raises(RemoteProtocolError):
        wire.unpack_untrusted(wire.pack(value))
    assert wire.unpack_untrusted(wire.pack(value), max_array=2000) == value


# -- payloads ----------------------------------------------------------------------------------------------


@given(values)
def test_a_payload_arrives_as_itself(value: object) -> None:
    encoded = wire.encode_payload(value, LIMIT)
    assert (type(encoded) is bytes) == isinstance(value, bytes)
    arrived = decoded(wire.encode_batch([kinds.Reply(1, encoded)]))[0].payload
    assert wire.payload_size(arrived) == wire.payload_size(encoded)
    back = wire.decode_payload_untrusted(arrived)
    assert back == value
    assert type(back) is type(value)


def test_split_and_join_keep_bytes_and_packed_values_apart() -> None:
    for value in (b"\x01", 1):
        data, packed = wire.split_payload(wire.encode_payload(value, LIMIT))
        assert wire.decode_payload_untrusted(wire.join_payload(data, packed=packed)) == value


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        ((1, (2, 3)), [1, [2, 3]]),
        ([bytearray(b"x"), memoryview(b"y")], [b"x", b"y"]),
        (-(2**63), -(2**63)),
        (2**64 - 1, 2**64 - 1),
    ],
)
def test_near_relatives_arrive_as_the_plain_type(given: object, arrives: object) -> None:
    assert wire.decode_payload_untrusted(wire.encode_payload(given, LIMIT)) == arrives


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


UNSENDABLE: list[object] = [
    object(),
    {1, 2},
    1j,
    2**64,
    -(2**63) - 1,
    "\ud800",
    {"a": "\udfff"},
    {1: 2},
    {b"a": 1},
    {None: 1},
    {"a": [{2: 3}]},
    OrderedDict[str, int](a=1),
    Ext(1, b"x"),
    [Ext(5, b"x")],
    {"when": msgpack.Timestamp(1, 2)},
    nested(501),
    nested(5000),
    endless(),
]


@pytest.mark.parametrize("value", UNSENDABLE)
def test_what_cannot_be_sent_is_the_senders_error(value: object) -> None:
    with pytest.raises(LocalProtocolError, match="cannot send"):
        wire.encode_payload(value, LIMIT)


def test_the_deepest_value_that_can_be_sent_arrives() -> None:
    value = nested(500)
    assert wire.decode_payload_untrusted(wire.encode_payload(value, LIMIT)) == value


@pytest.mark.parametrize("value", [bytes(101), "x" * 101, [b"x" * 98], bytearray(101)])
def test_a_payload_beyond_the_limit_names_the_limit(value: object) -> None:
    with pytest.raises(PayloadTooLarge, match="limit is 100 bytes"):
        wire.encode_payload(value, 100)


def test_a_payload_at_the_limit_passes() -> None:
    assert wire.payload_size(wire.encode_payload(bytes(100), 100)) == 100
    assert wire.payload_size(wire.encode_payload([bytes(97)], 100)) == 100


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x01\x01",
        b"\x91",
        b"\x81\x01\x02",
        b"\x81\xc4\x01a\x01",
        b"\x81\xc0\x01",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\xd4\x05x",
        b"\xa1\xff",
        b"\xdc\xff\xff" + b"\x80" * 65535 + b"\x80",
        b"\xdd\x00\x01\x00\x01" + b"\x80" * 65537,
        b"\xdd\x00\x01\x00\x00" + b"\x90" * 65536,
    ],
    ids=[
        "nothing",
        "surplus",
        "cut off",
        "an int for a key",
        "bytes for a key",
        "nil for a key",
        "a key twice",
        "an extension",
        "text that is not UTF-8",
        "surplus after dicts",
        "too many dicts",
        "too many lists",
    ],
)
def test_a_malformed_payload_is_the_peers_error(packed: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed payload"):
        wire.decode_payload_untrusted(Ext(1, packed))


@given(st.binary(max_size=100))
def test_any_packed_bytes_are_a_value_or_one_error(junk: bytes) -> None:
    try:
        value = wire.decode_payload_untrusted(Ext(1, junk))
    except RemoteProtocolError:
        return
    assume("Timestamp" not in repr(value))  # msgpack reads these on its own; only foreign programs send them
    wire.encode_payload(value, LIMIT)  # and every value that arrives can be sent on


@pytest.mark.parametrize("empty", [b"\x80", b"\x90"], ids=["dicts", "lists"])
def test_dicts_and_lists_cost_bounded_memory(empty: bytes) -> None:
    bomb = Ext(1, b"\xdd\x00\x0f\xff\xfb" + empty * (MIB - 5))
    assert peak_memory(wire.decode_payload_untrusted, bomb) < 20 * MIB


@pytest.mark.parametrize("empty", [{}, [], ()], ids=["dicts", "lists", "tuples"])
def test_so_many_dicts_and_lists_can_be_sent_and_no_more(empty: object) -> None:
    lists = [empty] * (wire.MAX_CONTAINERS - (empty != {}))
    assert len(wire.decode_payload_untrusted(wire.encode_payload(lists, MIB))) == len(lists)
    with pytest.raises(LocalProtocolError, match="65536 at most"):
        wire.encode_payload([*lists, empty], MIB)


# -- headers -----------------------------------------------------------------------------------------------

headers_given = st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=20)


@given(headers_given)
def test_headers_arrive_as_they_were_given(headers: dict[str, str]) -> None:
    assert wire.decode_headers_untrusted(wire.encode_headers(headers, 8 * KIB)) == headers


def test_no_headers_take_no_room() -> None:
    assert wire.encode_headers(None, 10) is None
    assert wire.encode_headers({}, 10) is None
    assert wire.decode_headers_untrusted(None) == {}


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": b"b"}, {"a": None}, {"a": "\ud800"}, {"\udcff": "a"}])
def test_headers_that_are_not_text_are_the_senders_error(headers: dict[Any, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        wire.encode_headers(headers, 1000)


def test_headers_count_in_bytes() -> None:
    assert wire.encode_headers({"a": "ä" * 4}, 9) == ("a", "ä" * 4)
    with pytest.raises(PayloadTooLarge, match="9 bytes: the limit is 512 headers and 8 bytes"):
        wire.encode_headers({"a": "ä" * 4}, 8)


def test_headers_are_at_most_512() -> None:
    assert wire.encode_headers({str(n): "" for n in range(512)}, 8 * KIB)
    with pytest.raises(PayloadTooLarge):
        wire.encode_headers({str(n): "" for n in range(513)}, 8 * KIB)


@pytest.mark.parametrize("field", [1, "ab", ("a",), ("a", 1), (1, "a"), ("a", "b", "c"), ("a", "1", "a", "2"), {}])
def test_malformed_headers_are_the_peers_error(field: object) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode_headers_untrusted(arrived(kinds.Request, 1, "c", None, 1, 0, field, b"").headers)


@pytest.mark.parametrize("headers", [["a"], "text", 5, (("a", "b"),)])
def test_headers_that_are_no_dict_are_refused_with_their_type(headers: Any) -> None:
    with pytest.raises(LocalProtocolError, match=f"headers are of type {type(headers).__name__}: use a dict of texts"):
        wire.encode_headers(headers, 8 * KIB)


# -- packers that are kept ---------------------------------------------------------------------------------


def test_a_batch_is_read_where_it_was_packed_and_is_gone_afterwards() -> None:
    seen: list[memoryview] = []

    def seal(batch: memoryview) -> bytes:
        seen.append(batch)
        return b"sealed " + batch

    assert wire.encode_batch([array(1, 2)], seal) == b"sealed " + wire.encode_batch([array(1, 2)])
    with pytest.raises(ValueError, match="released"):
        len(seen[0])


def test_encoding_within_sealing_disturbs_neither() -> None:
    """As two threads would."""

    def seal(batch: memoryview) -> bytes:
        inner = wire.encode_batch([array(3, "inner")])
        assert arrays(inner) == [(3, "inner")]
        return bytes(batch)

    assert arrays(wire.encode_batch([array(1, "outer")], seal)) == [(1, "outer")]


@pytest.mark.parametrize("size", [0, 10, 256 * KIB - 10, 256 * KIB + 1, 2 * MIB])
def test_what_was_encoded_before_leaves_no_trace_however_large_it_was(size: int) -> None:
    with pytest.raises(OverflowError):
        wire.encode_batch([array(1, bytes(size)), array(2, 2**70)])

    def fail(_: memoryview) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wire.encode_batch([array(1, bytes(size))], fail)
    assert arrays(wire.encode_batch([array(1, bytes(size))])) == [(1, bytes(size))]
    assert wire.encode_batch([array(7, 8)]) == b"\x91\x92\x07\x08"


# -- numbers -----------------------------------------------------------------------------------------------


def test_counters_of_what_peers_say_stay_where_they_mean_nothing_any_more() -> None:
    assert wire.saturated(5) == 5
    assert wire.saturated(2**62 + 2**62) == 2**62


@pytest.mark.parametrize(
    ("size", "most"), [(0, 0), (100, 25), (2048, 512), (8000, 512), (16 * KIB, 1024), (MIB, 65536)]
)
def test_what_a_sealed_frame_may_hold_follows_from_its_size(size: int, most: int) -> None:
    assert wire.carried_by(size) == most


@given(st.lists(st.integers(), max_size=2000))
def test_the_length_of_a_packed_array_is_read_off(values: list[int]) -> None:
    numbers = [value % 2**63 for value in values]
    assert wire.array_length(wire.pack(numbers)) == len(numbers)


@pytest.mark.parametrize("packed", [b"", b"\xc0", b"\x81\x01\x02", b"\xa3abc", b"\xcd\x01\x02"])
def test_what_is_no_array_has_no_length(packed: bytes) -> None:
    assert wire.array_length(packed) == 0
