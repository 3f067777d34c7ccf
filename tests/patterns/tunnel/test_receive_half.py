"""The receiving half: order, limits, credit, and how much memory a peer can take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import kinds
from iris.patterns.tunnel.messages import CHUNK_COST, END, PACKED, SMALLEST_PIECE
from iris.patterns.tunnel.receive_half import ReceivingHalf

WINDOW = 8192


def half(*, limit: int = 4000) -> ReceivingHalf:
    return ReceivingHalf(window=WINDOW, limit=limit)


def feed(receiving: ReceivingHalf, size: int, *, first: int = 0, flags: int = END, announce: bool = False) -> None:
    """Give ten thousand chunks; nobody reads."""
    for number in range(first, 10_000):
        receiving.add(kinds.TunnelChunk(1, number, flags, bytes(size)))
        if announce and receiving.owes_news:
            receiving.announce()


def test_chunks_in_order_become_messages() -> None:
    receiving = half()
    assert receiving.add(kinds.TunnelChunk(1, 0, 0, b"a" * 600))
    assert receiving.read() is None
    assert receiving.add(kinds.TunnelChunk(1, 1, END, b"b"))
    assert receiving.add(kinds.TunnelChunk(1, 2, END | PACKED, b"c"))
    assert receiving.read() == (b"a" * 600 + b"b", False)
    assert receiving.read() == (b"c", True)
    assert receiving.read() is None
    assert receiving.held == 0


def test_pieces_can_be_read_before_their_message_is_whole() -> None:
    receiving = half()
    receiving.add(kinds.TunnelChunk(1, 0, 0, b"a" * 600))
    assert receiving.read_piece() == (b"a" * 600, False)
    assert receiving.read_piece() is None
    receiving.add(kinds.TunnelChunk(1, 1, END, b"b"))
    assert receiving.messages
    assert receiving.read_piece() == (b"b", False)
    assert not receiving.messages


@pytest.mark.parametrize(("cost", "owed"), [(WINDOW // 4, True), (WINDOW // 4 - 1, False)])
def test_credit_is_announced_as_soon_as_a_quarter_of_the_window_was_read(cost: int, owed: bool) -> None:
    receiving = half()
    receiving.add(kinds.TunnelChunk(1, 0, END, bytes(cost - CHUNK_COST)))
    assert receiving.announce() == (WINDOW, False), "nobody has read it"
    assert not receiving.owes_news
    assert receiving.read() is not None
    assert receiving.owes_news is owed
    assert receiving.announce() == (WINDOW + cost, False)


@pytest.mark.parametrize(("cost", "owed"), [(WINDOW // 4, True), (WINDOW // 4 - 1, False)])
def test_the_other_end_is_told_as_soon_as_a_quarter_of_its_window_has_arrived(cost: int, owed: bool) -> None:
    receiving = half()
    receiving.begin(WINDOW)
    receiving.add(kinds.TunnelChunk(1, 0, 0, bytes(cost - CHUNK_COST)))
    assert receiving.owes_news is owed


def test_repeated_chunks_are_dropped() -> None:
    receiving = half()
    receiving.add(kinds.TunnelChunk(1, 0, END, b"a"))
    assert not receiving.add(kinds.TunnelChunk(1, 0, END, b"a"))
    receiving.add_eof(1)
    assert not receiving.add_eof(1)
    assert receiving.chunks_repeated == 2
    assert receiving.messages_received == 1


def test_a_chunk_out_of_turn_is_dropped_and_what_is_missing_asked_for_once() -> None:
    receiving = half()
    assert not receiving.add(kinds.TunnelChunk(1, 1, END, b"b"))
    assert receiving.wants_resend
    _, resend = receiving.announce()
    assert resend
    assert not receiving.add(kinds.TunnelChunk(1, 2, END, b"c"))
    assert not receiving.wants_resend, "one request is enough for all that follows the loss"
    assert receiving.has_gap
    assert receiving.add(kinds.TunnelChunk(1, 0, END, b"a"))
    assert not receiving.has_gap


def test_a_lost_last_chunk_is_noticed_from_what_the_peer_says_it_sent() -> None:
    receiving = half()
    receiving.add(kinds.TunnelChunk(1, 0, END, b"a"))
    receiving.compare(1)
    assert not receiving.wants_resend
    receiving.compare(2)
    assert receiving.wants_resend


def test_a_request_that_may_be_lost_can_be_repeated() -> None:
    receiving = half()
    receiving.ask_again()
    assert not receiving.wants_resend, "nothing is missing"
    receiving.add(kinds.TunnelChunk(1, 1, END, b"b"))
    receiving.announce()
    receiving.ask_again()
    assert receiving.wants_resend


def test_a_peer_that_only_sends_out_of_turn_is_found_out() -> None:
    receiving = half()
    with pytest.raises(RemoteProtocolError, match="out of order"):
        feed(receiving, 1000, first=1, announce=True)
    assert receiving.held == 0


def test_a_peer_that_ignores_credit_is_found_out_and_costs_one_window() -> None:
    receiving = half()
    with pytest.raises(RemoteProtocolError, match="ignores credit"):
        feed(receiving, 1000)
    assert receiving.held <= WINDOW


def test_empty_messages_cost_credit() -> None:
    receiving = half()
    with pytest.raises(RemoteProtocolError, match="ignores credit"):
        feed(receiving, 0)
    assert receiving.messages_received == WINDOW // CHUNK_COST


def test_a_message_larger_than_the_window_arrives_if_it_is_within_the_limit() -> None:
    receiving = half(limit=100_000)
    for number in range(100):
        receiving.add(kinds.TunnelChunk(1, number, END if number == 99 else 0, bytes(1000)))
        if receiving.owes_news:
            receiving.announce()
    assert receiving.read() == (bytes(100_000), False)


def test_a_message_over_the_limit_is_refused_before_it_is_whole() -> None:
    receiving = half(limit=100_000)
    with pytest.raises(RemoteProtocolError, match="limit"):
        feed(receiving, 1000, flags=0, announce=True)
    assert receiving.held <= 1.25 * 100_000 + WINDOW


def test_a_message_of_tiny_pieces_is_refused() -> None:
    receiving = half()
    with pytest.raises(RemoteProtocolError, match="piece of 511 bytes"):
        receiving.add(kinds.TunnelChunk(1, 0, 0, bytes(SMALLEST_PIECE - 1)))


def test_bytes_and_packed_pieces_do_not_mix() -> None:
    receiving = half()
    receiving.add(kinds.TunnelChunk(1, 0, PACKED, bytes(600)))
    with pytest.raises(RemoteProtocolError, match="in one message"):
        receiving.add(kinds.TunnelChunk(1, 1, END, b""))


def test_the_end_of_file_does_not_cut_a_message() -> None:
    receiving = half()
    receiving.add(kinds.TunnelChunk(1, 0, 0, bytes(600)))
    with pytest.raises(RemoteProtocolError, match="within a message"):
        receiving.add_eof(1)
    assert not receiving.has_eof


def test_credit_comes_back_in_quarters_as_messages_are_read() -> None:
    receiving = half()
    quarter = WINDOW // 4
    receiving.add(kinds.TunnelChunk(1, 0, END, bytes(quarter - CHUNK_COST - 1)))
    assert not receiving.owes_news
    receiving.add(kinds.TunnelChunk(1, 1, END, b""))
    assert receiving.owes_news, "so that the sender can let go of what has arrived"
    assert receiving.announce() == (WINDOW, False), "but nothing is read, so there is no new credit"
    receiving.read()
    assert not receiving.owes_news
    receiving.read()
    assert receiving.owes_news
    assert receiving.announce() == (WINDOW + quarter - 1 + CHUNK_COST, False)


def test_a_small_window_of_the_other_end_is_acknowledged_in_its_quarters() -> None:
    receiving = ReceivingHalf(window=2**20, limit=2**20)
    receiving.begin(4096)
    receiving.add(kinds.TunnelChunk(1, 0, END, bytes(1024)))
    assert receiving.owes_news


def test_what_is_discarded_gives_credit() -> None:
    receiving = half()
    for number in range(3):
        receiving.add(kinds.TunnelChunk(1, number, END, bytes(1000)))
    assert receiving.discard() == 3
    assert receiving.held == 0
    assert not receiving.has_piece
    assert receiving.announce()[0] == WINDOW + 3 * (1000 + CHUNK_COST)


CHUNKS = st.builds(
    kinds.TunnelChunk,
    id=st.just(1),
    sequence=st.integers(0, 30),
    flags=st.sampled_from([END, END, 0, END | PACKED, PACKED]),
    data=st.sampled_from([b"", bytes(100), bytes(512), bytes(2000)]),
)


@given(steps=st.lists(st.one_of(CHUNKS, st.sampled_from(["next", "read", "piece", "announce", "eof"])), max_size=200))
def test_no_peer_makes_it_hold_more_than_a_window_and_a_message(steps: list[kinds.TunnelChunk | str]) -> None:
    receiving = half()
    bound = WINDOW + 1.25 * 4000 + CHUNK_COST
    for step in steps:
        try:
            if isinstance(step, kinds.TunnelChunk):
                receiving.add(step)
            elif step == "next":
                receiving.add(kinds.TunnelChunk(1, receiving.received, END, bytes(1500)))
            elif step == "eof":
                receiving.add_eof(receiving.received + 1)
            elif step == "read":
                receiving.read()
            elif step == "piece":
                receiving.read_piece()
            else:
                receiving.announce()
        except RemoteProtocolError:
            break
        assert 0 <= receiving.held <= bound
        assert receiving.messages == sum(bool(flags & END) for flags, _ in receiving._waiting)
