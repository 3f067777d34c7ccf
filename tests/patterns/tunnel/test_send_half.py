"""The sending half: cutting, credit, acknowledgement, going back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import RemoteProtocolError
from iris.patterns.tunnel.messages import CHUNK_COST, END, PACKED, SMALLEST_PIECE
from iris.patterns.tunnel.send_half import END_OF_FILE, Piece, SendingHalf


def half(*, bound: int = 2**21, piece: int = 1024, window: int = 2**20) -> SendingHalf:
    sending = SendingHalf(bound=bound, piece=piece)
    sending.begin(window, 2**20)
    return sending


def take_all(sending: SendingHalf, limit: int = 2**16) -> list[Piece]:
    chunks: list[Piece] = []
    while chunk := sending.pop(limit):
        chunks.append(chunk)
    return chunks


def test_a_small_message_is_one_chunk() -> None:
    sending = half()
    sending.add(b"data", packed=True)
    assert take_all(sending) == [Piece(0, END | PACKED, b"data")]


def test_an_empty_message_is_a_chunk() -> None:
    sending = half()
    sending.add(b"", packed=False)
    assert take_all(sending) == [Piece(0, END, b"")]


def test_a_large_message_is_cut_and_only_its_last_piece_ends_it() -> None:
    sending = half()
    data = bytes(range(256)) * 10
    sending.add(data, packed=False)
    sending.add(b"next", packed=False)
    chunks = take_all(sending)
    assert [len(chunk.data) for chunk in chunks] == [1024, 1024, 512, 4]
    assert [chunk.flags for chunk in chunks] == [0, 0, END, END]
    assert b"".join(chunk.data for chunk in chunks) == data + b"next"


def test_pieces_fit_the_room_that_a_frame_has_left() -> None:
    sending = half()
    sending.add(bytes(1000), packed=False)
    chunk = sending.pop(600)
    assert chunk is not None
    assert len(chunk.data) == 600
    chunk = sending.pop(1)
    assert chunk is not None
    assert len(chunk.data) == 400, "a rest below the smallest piece is not cut further"


def test_a_short_tail_goes_along_so_that_messages_stay_in_step_with_frames() -> None:
    sending = half()
    for size in (10, 1024, 1024):
        sending.add(bytes(size), packed=False)
    sizes: list[int] = []
    room = 1024
    while chunk := sending.pop(room):
        sizes.append(len(chunk.data))
        room = room - len(chunk.data) if room > len(chunk.data) else 1024
    assert sizes == [10, 1024, 1024]


def test_nothing_leaves_without_credit() -> None:
    sending = half(window=4096)
    sending.add(bytes(10_000), packed=False)
    cost = sum(len(chunk.data) + CHUNK_COST for chunk in take_all(sending))
    assert 4096 - (1024 + CHUNK_COST) < cost <= 4096
    assert not sending.has_next
    sending.acknowledge(0, cost + 1024 + CHUNK_COST)
    assert sending.has_next
    assert len(take_all(sending)) == 1


def test_the_end_of_file_needs_no_credit_and_comes_last() -> None:
    sending = half(window=4096)
    sending.add(bytes(4000), packed=False)
    sending.add_eof()
    before = take_all(sending)
    assert END_OF_FILE not in [chunk.flags for chunk in before]
    sending.acknowledge(0, 2**20)
    assert take_all(sending)[-1] == Piece(sending.sent - 1, END_OF_FILE, b"")
    empty = half(window=4096)
    empty.add_eof()
    assert take_all(empty) == [Piece(0, END_OF_FILE, b"")]


def test_acknowledged_chunks_are_let_go_and_make_room() -> None:
    sending = half(bound=3000)
    sending.add(bytes(2000), packed=False)
    assert not sending.has_room(1500)
    take_all(sending)
    assert not sending.has_room(1500), "what is not acknowledged takes room, too"
    sending.acknowledge(1, 0)
    assert sending.messages_delivered == 0
    sending.acknowledge(2, 0)
    assert sending.has_room(1500)
    assert sending.messages_delivered == 1
    assert sending.held == 0
    assert sending.is_flushed


def test_a_message_larger_than_the_bound_is_taken_alone() -> None:
    sending = half(bound=3000)
    assert sending.has_room(10_000)
    sending.add(bytes(10_000), packed=False)
    assert not sending.has_room(0)


def test_what_was_never_sent_cannot_be_acknowledged() -> None:
    sending = half()
    sending.add(b"data", packed=False)
    take_all(sending)
    sending.acknowledge(1, 0)
    with pytest.raises(RemoteProtocolError, match="only 1 were sent"):
        sending.acknowledge(2, 0)


def test_going_back_sends_the_same_chunks_again() -> None:
    sending = half()
    sending.add(bytes(3000), packed=False)
    chunks = take_all(sending)
    sending.acknowledge(1, 0)
    sending.go_back(1)
    assert sending.has_next
    assert take_all(sending, limit=1) == chunks[1:], "chunks once cut keep their size whatever room there is"
    sending.go_back(0)
    assert not sending.has_next, "a late request for what is acknowledged means nothing"
    assert sending.chunks_resent == 2


def test_abandoned_messages_are_counted() -> None:
    sending = half()
    for _ in range(3):
        sending.add(bytes(2000), packed=False)
    take_all(sending)
    sending.acknowledge(3, 0)
    assert sending.abandon() == 2
    assert sending.held == 0
    assert sending.pop(2**16) is None


@given(
    sizes=st.lists(st.integers(0, 5000), max_size=20),
    piece=st.integers(1, 4000),
    window=st.integers(4096, 20_000),
    limits=st.lists(st.integers(-100, 5000), min_size=1),
)
def test_messages_survive_cutting(sizes: list[int], piece: int, window: int, limits: list[int]) -> None:
    """Every cut is within its limits, and the pieces put together are the messages."""
    messages = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    sending = half(piece=piece, window=window)
    for message in messages:
        sending.add(message, packed=False)
    granted = window
    spent = 0
    got: list[bytes] = []
    parts: list[bytes] = []
    turn = 0
    while not sending.is_flushed:
        limit = limits[turn % len(limits)]
        turn += 1
        chunk = sending.pop(limit)
        if chunk is None:
            assert granted - spent < window / 4, "a sender with a quarter of the window left can always go on"
            granted = spent + window
            sending.acknowledge(sending.sent, granted)
            continue
        spent += len(chunk.data) + CHUNK_COST
        assert spent <= granted
        assert len(chunk.data) <= max(limit, SMALLEST_PIECE) + max(piece, SMALLEST_PIECE) // 8
        assert chunk.flags == END or len(chunk.data) >= SMALLEST_PIECE
        parts.append(bytes(chunk.data))
        if chunk.flags:
            got.append(b"".join(parts))
            parts = []
        if chunk.sequence % 3 == 0:
            sending.acknowledge(chunk.sequence + 1, granted)
        if not sending.has_next:
            sending.acknowledge(sending.sent, granted)
    assert got == messages
    assert sending.messages_delivered == sending.messages_sent == len(messages)


def test_the_end_of_file_is_no_chunk_also_when_it_is_sent_again() -> None:
    sending = half()
    sending.add(b"data", packed=False)
    sending.add_eof()
    for _ in range(2):
        assert (sending.has_next, sending.has_chunk) == (True, True)
        assert sending.pop(2**16) == Piece(0, END, b"data")
        assert (sending.has_next, sending.has_chunk) == (True, False)
        assert sending.pop(2**16) == Piece(1, END_OF_FILE, b"")
        assert (sending.has_next, sending.has_chunk) == (False, False)
        sending.go_back(0)
