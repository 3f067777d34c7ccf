"""Messages about tunnels, as a peer may write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.messages import array, fields_of, raw
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import Message
from iris.patterns.tunnel.messages import (
    Acknowledgement,
    CloseCode,
    Refusal,
    TunnelChunk,
    TunnelOpen,
    close_message,
    read_accept_untrusted,
    read_ack_untrusted,
    read_chunk_untrusted,
    read_close_untrusted,
    read_eof_untrusted,
    read_id_untrusted,
    read_marked_untrusted,
    read_open_untrusted,
    read_refuse_untrusted,
    refuse_message,
)

READERS: dict[int, Callable[[Message], object]] = {
    kinds.TunnelOpen: read_open_untrusted,
    kinds.TunnelAccept: read_accept_untrusted,
    kinds.TunnelRefuse: read_refuse_untrusted,
    kinds.TunnelChunk: read_chunk_untrusted,
    kinds.TunnelEof: read_eof_untrusted,
    kinds.TunnelAck: read_ack_untrusted,
    kinds.TunnelClose: read_close_untrusted,
    kinds.TunnelMarked: read_marked_untrusted,
}
WELL_FORMED: dict[Message, object] = {
    kinds.TunnelOpen(1, "c", None, ("a", "b"), 4096, 1): TunnelOpen(
        cluster="c", operation=None, headers=("a", "b"), window=4096, limit=1
    ),
    kinds.TunnelAccept(-1, 4096, 1): (4096, 1),
    kinds.TunnelRefuse(-1, "overloaded", "busy", 1500): Refusal(code="overloaded", text="busy", retry_after=1.5),
    kinds.TunnelChunk(1, 0, 3, b"data", 7): TunnelChunk(0, 3, b"data", 7),
    kinds.TunnelEof(1, 7): 7,
    kinds.TunnelAck(1, 2, 3, 4, 1): Acknowledgement(2, 3, 4, 1),
    kinds.TunnelClose(1, 1, 5, "why"): (CloseCode.ABORTED, 5, "why"),
    kinds.TunnelMarked(2): 2,
}
MALFORMED: list[Message] = [
    kinds.TunnelOpen(1, "c", None, None, 4095, 1),
    kinds.TunnelOpen(1, "c", None, None, 4096, 0),
    raw(kinds.TunnelOpen, 1, b"c", None, None, 4096, 1),
    raw(kinds.TunnelOpen, 1, "c", 1, None, 4096, 1),
    kinds.TunnelAccept(-1, 4095, 1),
    kinds.TunnelAccept(-1, 4096, 2**63),
    kinds.TunnelRefuse(-1, "code", "text", -1),
    kinds.TunnelChunk(1, 0, 4, b"", 0),
    kinds.TunnelChunk(1, -1, 0, b"", 0),
    kinds.TunnelChunk(1, True, 0, b"", 0),
    raw(kinds.TunnelChunk, 1, 0, 0, "text", 0),
    raw(kinds.TunnelEof, 1, 1.0),
    kinds.TunnelAck(1, 0, 0, 0, -1),
    kinds.TunnelAck(1, 0, 2**70, 0, 0),
    kinds.TunnelClose(1, int(CloseCode.REFUSED), 0, ""),
    raw(kinds.TunnelClose, 1, 0, 0, b""),
    kinds.TunnelMarked(-1),
    raw(
        kinds.TunnelMarked,
    ),
    raw(kinds.TunnelMarked, "1"),
]


def test_every_kind_is_covered() -> None:
    declared = {value for name, value in vars(kinds).items() if name.startswith("TUNNEL_")}
    assert (
        declared
        == set(READERS)
        == {type(message) for message in WELL_FORMED}
        == {type(message) for message in MALFORMED}
    )


@pytest.mark.parametrize("message", WELL_FORMED, ids=repr)
def test_well_formed_messages_are_read(message: Message) -> None:
    assert READERS[type(message)](message) == WELL_FORMED[message]
    assert read_id_untrusted(message) == fields_of(message)[0]


@pytest.mark.parametrize("message", MALFORMED, ids=repr)
def test_malformed_messages_are_refused(message: Message) -> None:
    with pytest.raises(RemoteProtocolError):
        READERS[type(message)](message)


@pytest.mark.parametrize("identifier", [0, True, None, "1", 2**70, -(2**70)])
def test_ids_are_whole_numbers_other_than_zero(identifier: object) -> None:
    with pytest.raises(RemoteProtocolError):
        read_id_untrusted(raw(kinds.TunnelEof, identifier, 0))


VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.binary(max_size=9), st.just(())
)


@given(kind=st.sampled_from(sorted(READERS)), fields=st.lists(VALUE, max_size=7))
def test_readers_raise_nothing_else(kind: int, fields: list[object]) -> None:
    try:
        READERS[kind](array(kind, 1, *fields))
    except RemoteProtocolError:
        return


def test_reasons_are_cut_and_hold_no_control_characters() -> None:
    message = close_message(1, CloseCode.ABORTED, 0, "\x1b[31m" + "x" * 1000)
    assert fields_of(message)[3] == "?[31m" + "x" * 195
    assert refuse_message(-1, Refusal(code="code", text="a\nb", retry_after=0.25)) == kinds.TunnelRefuse(-1, "code", "a?b", 250
    )  # fmt: skip
    _, _, reason = read_close_untrusted(kinds.TunnelClose(1, 1, 0, "\x07" * 300))
    assert reason == "?" * 200
