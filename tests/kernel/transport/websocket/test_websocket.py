"""WebSocket without a network around it: what is said, in which pieces, and by whom it may be said."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.config import MIB
from iris.kernel.errors import ConfigError
from iris.kernel.transport.websocket import (
    PULL,
    PUSH,
    ClientUpgrade,
    NotUpgraded,
    ServerUpgrade,
    WebSocketFraming,
    path_of,
    split_url,
)

LIMIT = 1000
URL = "ws://host:80/iris"


def upgraded(limit: int = LIMIT, url: str = URL) -> tuple[WebSocketFraming, WebSocketFraming]:
    """Both ends of a connection: the one that has dialled, and the one that has accepted."""
    asking, asked = ClientUpgrade(url, PULL, limit), ServerUpgrade(limit)
    asked.receive(asking.request)
    near = asked.accept(PULL)
    assert near is not None
    far = asking.receive(asked.answer)
    assert far is not None
    return far, near


def frame(opcode: int, data: bytes, *, fin: bool = True, masked: bool = True, length: int | None = None) -> bytes:
    """Return a frame of RFC 6455, 5.2; ``length`` is the length that it claims."""
    size = len(data) if length is None else length
    mark = 0x80 if masked else 0
    head = bytes(((0x80 if fin else 0) | opcode,))
    if size < 126:
        head += bytes((mark | size,))
    elif size < 65536:
        head += struct.pack(">BH", mark | 126, size)
    else:
        head += struct.pack(">BQ", mark | 127, size)
    if not masked:
        return head + data
    key = b"\x01\x02\x03\x04"
    return head + key + bytes(byte ^ key[place % 4] for place, byte in enumerate(data))


BINARY, CONT, TEXT, CLOSE, PING, PONG = 2, 0, 1, 8, 9, 10


# -- the upgrade -------------------------------------------------------------------------------------------


def test_an_upgrade_is_what_nng_asks_for() -> None:
    request = ClientUpgrade("ws://[::1]:8080/a/b?c=d", PULL, LIMIT).request.decode()
    assert request.startswith("GET /a/b?c=d HTTP/1.1\r\nHost: [::1]:8080\r\n")
    assert f"\r\nSec-WebSocket-Protocol: {PULL}\r\n" in request
    assert "Extensions" not in request


@pytest.mark.parametrize("url", ["ws://h:1", "ws://h:1/", "ws://h:1/iris/", "ws://h:1/iris?x"])
def test_the_path_that_is_asked_for_is_told(url: str) -> None:
    asked = ServerUpgrade(LIMIT)
    asked.receive(ClientUpgrade(url, PULL, LIMIT).request)
    assert asked.path == ("/iris" if "iris" in url else "") == path_of(split_url(url).resource_name)
    assert not asked.is_over
    assert asked.answer == b""


@given(st.lists(st.integers(1, 260), max_size=6))
def test_it_may_come_in_pieces(cuts: list[int]) -> None:
    asking, asked = ClientUpgrade(URL, PULL, LIMIT), ServerUpgrade(LIMIT)
    for begin, end in itertools.pairwise(sorted({0, *cuts, 10_000})):
        if asking.request[begin:end]:
            assert asked.path is None
            asked.receive(asking.request[begin:end])
    assert asked.path == "/iris"
    assert asked.accept(PULL) is not None
    for begin, end in itertools.pairwise(sorted({0, *cuts, 10_000})):
        if asked.answer[begin:end]:
            far = asking.receive(asked.answer[begin:end])
            assert (far is None) == (end < len(asked.answer))


def test_what_comes_with_the_answer_is_not_lost() -> None:
    asking, asked = ClientUpgrade(URL, PUSH, LIMIT), ServerUpgrade(LIMIT)
    asked.receive(asking.request)
    near = asked.accept(PUSH)
    assert near is not None
    far = asking.receive(asked.answer + near.encode(b"first")[0] + near.encode(b"second")[0][:3])
    assert far is not None
    assert list(far.waiting) == [b"first"]
    far.receive(near.encode(b"second")[0][3:])
    assert list(far.waiting) == [b"first", b"second"]


def test_another_kind_of_listener_is_not_taken() -> None:
    asking, asked = ClientUpgrade(URL, PUSH, LIMIT), ServerUpgrade(LIMIT)
    asked.receive(asking.request)
    assert asked.accept(PULL) is None
    assert asked.is_over
    assert asked.answer.startswith(b"HTTP/1.1 400 ")
    with pytest.raises(NotUpgraded, match="it answers 400") as caught:
        asking.receive(asked.answer)
    assert not caught.value.is_absent


def test_that_there_is_nothing_is_said_and_heard() -> None:
    asking, asked = ClientUpgrade(URL, PULL, LIMIT), ServerUpgrade(LIMIT)
    asked.receive(asking.request)
    asked.refuse()
    assert asked.is_over
    with pytest.raises(NotUpgraded, match="it answers 404 'Not Found'") as caught:
        asking.receive(asked.answer)
    assert caught.value.is_absent


@pytest.mark.parametrize(
    "answer",
    [
        b"\0SP\0\0\x51\0\0\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: no\r\n\r\n",
        b"HTTP/1.1 101 Yes\r\nUpgrade: other\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + bytes(100_000),
        b"",
    ],
)
def test_who_is_no_websocket_is_not_taken_for_one(answer: bytes) -> None:
    with pytest.raises(NotUpgraded):
        ClientUpgrade(URL, PULL, LIMIT).receive(answer)


def test_a_websocket_that_is_no_node_is_not_taken_for_one() -> None:
    asking, asked = ClientUpgrade(URL, PULL, LIMIT), ServerUpgrade(LIMIT)
    asked.receive(asking.request)
    assert asked.accept(PULL) is not None
    with pytest.raises(NotUpgraded, match="no node"):
        asking.receive(asked.answer.replace(f"Sec-WebSocket-Protocol: {PULL}\r\n".encode(), b""))


@pytest.mark.parametrize("url", ["ws://[::1:80/x", "ws://h:80/x#y", "ws://" + "x" * 300 + "é:80/", "ws://me@h:1/x"])
def test_a_url_that_is_none_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        split_url(url)


GOOD = ClientUpgrade(URL, PULL, LIMIT).request


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\0SP\0\0\x50\0\0\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 129,
        b"GET /" + b"x" * 9000,
        b"GET / HTTP/1.1\r\nX: " + b"x" * 9000,
        b"GET / HTTP/1.1\r\n" + (b"X: " + b"x" * 900 + b"\r\n") * 10,
        GOOD[:-2] + b"Content-Length: 5\r\n\r\nhello",
        GOOD[:-2] + b"Transfer-Encoding: chunked\r\n\r\n",
        GOOD + frame(BINARY, b"too early"),
        GOOD + b"ends like a request\r\n\r\n",
        GOOD + GOOD,
        b"GET /x HTTP/1.1\r\n\r\n" * 2,
    ],
)
def test_nonsense_in_place_of_a_request_ends_at_once(request_bytes: bytes) -> None:
    asked = ServerUpgrade(LIMIT)
    asked.receive(request_bytes)
    assert asked.is_over


@given(st.binary(max_size=20) | st.sampled_from([b"\r\n", b"\x82\x80abcd"]), st.booleans(), st.integers(1, 300))
def test_whatever_follows_a_request_is_too_early(more: bytes, as_request: bool, cut: int) -> None:
    asked = ServerUpgrade(LIMIT)
    said = GOOD + more + b"\r\n\r\n" * as_request
    cut = min(cut, len(GOOD) - 1)
    asked.receive(said[:cut])
    asked.receive(said[cut:])
    assert asked.is_over == (said != GOOD)
    if not asked.is_over:
        assert asked.accept(PULL) is not None


@pytest.mark.parametrize(
    ("what", "other"),
    [
        (b"GET", b"POST"),
        (b"Upgrade: websocket", b"Upgrade: other"),
        (b"Connection: Upgrade", b"Connection: close"),
        (b"Version: 13", b"Version: 12"),
        (b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Key: x"),
        (b"Sec-WebSocket-Key: ", b"Other: x"),
        (PULL.encode(), b"soap"),
        (b"Sec-WebSocket-Protocol", b"Other"),
    ],
)
def test_a_request_for_something_else_is_refused(what: bytes, other: bytes) -> None:
    assert what in GOOD
    asked = ServerUpgrade(LIMIT)
    asked.receive(GOOD.replace(what, other))
    assert asked.accept(PULL) is None
    assert asked.answer.startswith(b"HTTP/1.1 4")
    assert asked.is_over


@given(st.lists(st.binary(max_size=3000) | st.sampled_from([b"GET / HTTP/1.1\r\n", b"X: y\r\n", b"\r\n", GOOD])))
def test_no_bytes_in_place_of_a_request_do_more_than_end_it(pieces: list[bytes]) -> None:
    asked = ServerUpgrade(LIMIT)
    for piece in pieces:
        if asked.is_over or asked.path is not None:
            break
        asked.receive(piece)
    if asked.path is not None and not asked.is_over:
        assert (asked.accept(PULL) is None) == asked.is_over
    assert asked.answer == b"" or asked.answer.startswith((b"HTTP/1.1 101 ", b"HTTP/1.1 4"))


# -- messages ----------------------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([125, 126, 127, LIMIT]).map(bytes), max_size=8),
    st.lists(st.integers(0, 5000), max_size=12),
    st.booleans(),
)
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[bytes], cuts: list[int], from_client: bool
) -> None:
    one, other = upgraded() if from_client else upgraded()[::-1]
    data = b"".join(piece for message in messages for piece in one.encode(message))
    for begin, end in itertools.pairwise(sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})):
        other.receive(memoryview(data)[begin:end])
    assert list(other.waiting) == messages
    assert all(type(message) is bytes for message in other.waiting)
    assert not other.is_over


@pytest.mark.parametrize("size", [MIB, MIB + 1, 2 * MIB + 5])
def test_large_messages_go_in_frames_that_nng_takes(size: int) -> None:
    far, near = upgraded(3 * MIB)
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    pieces = far.encode(message)
    assert len(pieces) == -(-size // MIB)
    assert max(map(len, pieces)) <= MIB + 14
    near.receive(b"".join(pieces))
    assert near.waiting.pop() == message


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=6), st.lists(st.binary(max_size=125), max_size=6))
def test_messages_in_several_frames_are_whole_in_the_end_and_pings_are_answered_meanwhile(
    parts: list[bytes], pings: list[bytes]
) -> None:
    _, near = upgraded()
    for place, part in enumerate(parts):
        assert not near.waiting
        near.receive(frame(CONT if place else BINARY, part, fin=place == len(parts) - 1))
        if place < len(pings):
            near.receive(frame(PING, pings[place]) + frame(PONG, b"not asked for"))
            assert near.answer == frame(PONG, pings[place], masked=False)
            near.answer = b""
    assert list(near.waiting) == [b"".join(parts)]
    assert not near.is_over


def test_a_ping_to_a_client_is_answered_with_a_mask() -> None:
    far, near = upgraded()
    far.receive(frame(PING, b"you?", masked=False))
    assert far.answer[:2] == bytes((0x80 | PONG, 0x80 | 4))
    near.receive(far.answer)
    assert not near.is_over
    assert not near.waiting


@pytest.mark.parametrize("data", [b"", struct.pack(">H", 1000), struct.pack(">H", 1001) + b"the end"])
def test_a_goodbye_is_answered_and_nothing_counts_after_it(data: bytes) -> None:
    _, near = upgraded()
    near.receive(frame(BINARY, b"last") + frame(CLOSE, data) + frame(BINARY, b"later"))
    near.receive(frame(BINARY, b"later"))
    assert list(near.waiting) == [b"last"]
    assert near.is_over
    assert near.answer == frame(CLOSE, data, masked=False)


@pytest.mark.parametrize(
    "bad",
    [
        frame(BINARY, b"x", masked=False),
        frame(TEXT, b"x"),
        frame(TEXT, b"\xff"),
        frame(CONT, b"x"),
        frame(BINARY, b"x", fin=False) + frame(BINARY, b"x"),
        frame(BINARY, b"x", fin=False) + frame(CLOSE, b""),
        frame(PING, bytes(126)),
        frame(PING, b"", fin=False),
        frame(PONG, bytes(200)),
        frame(CLOSE, b"x"),
        frame(CLOSE, struct.pack(">H", 1005)),
        frame(CLOSE, struct.pack(">H", 1000) + b"\xff"),
        *(frame(opcode, b"") for opcode in (3, 7, 11, 15)),
        *(bytes((bit | 0x80 | BINARY,)) + frame(BINARY, b"x")[1:] for bit in (0x10, 0x20, 0x40)),
        frame(BINARY, bytes(LIMIT + 1)),
        frame(BINARY, b"", length=LIMIT + 126),
        frame(BINARY, b"", length=2**63 - 1),
        frame(BINARY, b"", length=2**64 - 1),
        frame(BINARY, bytes(LIMIT), fin=False) + frame(CONT, b"x"),
        frame(BINARY, bytes(600), fin=False) + frame(CONT, b"", length=600),
    ],
)
def test_who_says_what_must_not_be_said_is_done_with(bad: bytes) -> None:
    _, near = upgraded()
    near.receive(frame(BINARY, b"before") + bad)
    near.receive(frame(BINARY, b"after"))
    assert near.is_over
    assert list(near.waiting) == [b"before"]
    assert len(near.answer) < 200


@pytest.mark.parametrize("size", [0, 1, 125, 126, LIMIT - 1, LIMIT])
def test_a_message_has_at_most_the_limit_in_one_frame_or_in_many(size: int) -> None:
    _, near = upgraded()
    half = size // 2
    near.receive(frame(BINARY, bytes(half), fin=False) + frame(PING, b"?") + frame(CONT, bytes(size - half)))
    near.receive(frame(BINARY, bytes(size)))
    assert list(near.waiting) == [bytes(size)] * 2
    assert not near.is_over


def test_what_is_announced_costs_no_memory_before_it_comes() -> None:
    ends = [upgraded(MIB)[1] for _ in range(20)]
    tracemalloc.start()
    try:
        for near in ends:
            near.receive(frame(BINARY, b"x", length=MIB))
            for _ in range(100):
                near.receive(frame(PING, bytes(125)))  # within the message: it is part of it
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("idle", [frame(CONT, b"", fin=False), frame(CONT, bytes(1023), fin=False), frame(PING, b"")])
def test_small_frames_without_end_are_an_end(idle: bytes) -> None:
    _, near = upgraded(MIB)
    for _ in range(3):  # a message in between is worth as many again
        near.receive(frame(BINARY, b"", fin=False) + idle * 255)
        assert not near.is_over
        near.receive(frame(CONT, bytes(1024)))
        assert len(near.waiting.popleft()) >= 1024
    near.receive(frame(BINARY, b"", fin=False) + idle * 256 + frame(CONT, bytes(1024)))
    assert near.is_over
    assert not near.waiting


def test_who_sends_may_be_pinged_for_as_long_as_he_likes() -> None:
    far, near = upgraded()
    for _ in range(5):
        far.receive(frame(PING, b"", masked=False) * 256)
        assert not far.is_over
        near.receive(b"".join(far.encode(b"x")))
        assert near.waiting.popleft() == b"x"
    far.receive(frame(PING, b"", masked=False) * 257)
    assert far.is_over


def test_large_parts_may_be_as_many_as_the_limit_has_room_for() -> None:
    _, near = upgraded(MIB)
    near.receive(frame(BINARY, b"", fin=False))
    for _ in range(1023):
        near.receive(frame(CONT, bytes(1024), fin=False))
    near.receive(frame(CONT, bytes(1024)))
    assert near.waiting.popleft() == bytes(MIB)


def test_of_answers_that_nobody_can_send_the_newest_is_kept() -> None:
    far, _ = upgraded()
    for number in range(100):
        far.receive(frame(PING, b"%d" % number, masked=False) * 2)
        pong = far.answer[-6 - len(b"%d" % number) :]
        assert pong[:2] == bytes((0x8A, 0x80 + len(b"%d" % number)))
        assert bytes(byte ^ pong[2 + place % 4] for place, byte in enumerate(pong[6:])) == b"%d" % number
        assert len(far.answer) == 2 * len(pong)


@given(st.lists(st.binary(max_size=200) | st.builds(frame, st.integers(0, 15), st.binary(max_size=150))))
def test_no_bytes_do_more_than_end_their_connection(pieces: list[bytes]) -> None:
    _, near = upgraded()
    said = 0
    for piece in pieces:
        near.receive(piece)
        said += len(piece)
    assert sum(map(len, near.waiting)) <= said
    assert len(near.answer) <= said + 200
