"""Messages that a tunnel accepts from the other end: their form, and what ends up in logs."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import kinds
from iris.patterns.tunnel.messages import CloseCode, Refusal, close_message
from tests.support.messages import arrived, raw

MALFORMED: list[Any] = [
    raw(kinds.TunnelOpen, 1, "c", None, None, 4095, 1),
    raw(kinds.TunnelOpen, 1, "c", None, None, 4096, 0),
    raw(kinds.TunnelOpen, 1, b"c", None, None, 4096, 1),
    raw(kinds.TunnelOpen, 1, "c", 1, None, 4096, 1),
    raw(kinds.TunnelAccept, -1, 4095, 1),
    raw(kinds.TunnelAccept, -1, 4096, 2**63),
    raw(kinds.TunnelRefuse, -1, "code", "text", -1),
    raw(kinds.TunnelChunk, 1, 0, 4, b"", 0),
    raw(kinds.TunnelChunk, 1, -1, 0, b"", 0),
    raw(kinds.TunnelChunk, 1, True, 0, b"", 0),
    raw(kinds.TunnelChunk, 1, 0, 0, "text", 0),
    raw(kinds.TunnelEof, 1, 1.0),
    raw(kinds.TunnelAck, 1, 0, 0, 0, -1),
    raw(kinds.TunnelAck, 1, 0, 2**63, 0, 0),
    raw(kinds.TunnelClose, 1, int(CloseCode.REFUSED), 0, ""),
    raw(kinds.TunnelClose, 1, 0, 0, b""),
    raw(kinds.TunnelMarked, -1),
    raw(kinds.TunnelMarked),
    raw(kinds.TunnelMarked, "1"),
]


def test_every_kind_is_covered() -> None:
    every = {raw(kind)[0] for kind in (*get_args(kinds.OfTunnel), kinds.TunnelMarked)}
    assert every == {message[0] for message in MALFORMED}


@pytest.mark.parametrize("message", MALFORMED, ids=repr)
def test_malformed_messages_are_refused(message: tuple[Any, ...]) -> None:
    with pytest.raises(RemoteProtocolError):
        arrived(kinds.BY_KIND[message[0]], *message[1:])


def test_reasons_are_cut_and_hold_no_control_characters() -> None:
    message = close_message(1, CloseCode.ABORTED, 0, "\x1b[31m" + "x" * 1000)
    assert message.reason == "?[31m" + "x" * 195
    refusal = Refusal(code="code", text="a\nb", retry_after=0.25)
    assert refusal.message(-1) == kinds.TunnelRefuse(-1, "code", "a?b", 250)
    assert Refusal.of(kinds.TunnelRefuse(1, "c" * 99, "\x07" * 300, 250)) == Refusal(
        code="c" * 64, text="?" * 200, retry_after=0.25
    )
