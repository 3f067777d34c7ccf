"""Transition table of one end of a tunnel: every state, and what each input does to it.

Rules of this file:

- ``TRANSITIONS[state][input]`` is the state afterwards.
- An input that is missing there is an error and changes nothing: of this side (LocalProtocolError) if the input is in
  ``LOCAL_INPUTS``, of the peer (RemoteProtocolError) otherwise.
- An end that is closed accepts whatever the peer and the link still send, and ignores it.
- Whether a chunk or an end of file is new, repeated or out of order is not a matter of state; the receive half decides
  it.  Only an end of file that is next in order is the input END_OF_FILE; a repeated one is REPEATED.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from iris.kernel.errors import LocalProtocolError, RemoteProtocolError


class TunnelState(enum.Enum):
    """State of one end of a tunnel."""

    __hash__ = object.__hash__  # that of Enum is Python, four times for each message
    OPENING = "opening"
    """Asked for; the other end has not answered."""
    OPEN = "open"
    """Both directions work."""
    SENT_EOF = "sent eof"
    """This end has queued its end of file."""
    GOT_EOF = "got eof"
    """The other end's end of file has arrived."""
    ENDED = "ended"
    """Both directions have ended."""
    CLOSED = "closed"
    """Nothing is sent or accepted any more; what had arrived may still be read."""


class Input(enum.Enum):
    """Input of one end of a tunnel: of its program, of the peer, or of the link."""

    __hash__ = object.__hash__
    SEND = "send"
    SEND_EOF = "send eof"
    CLOSE = "close"

    ACCEPT = "accept"
    REFUSE = "refuse"
    CHUNK = "chunk"
    REPEATED = "repeated chunk or end of file"
    END_OF_FILE = "end of file"
    ACK = "acknowledgement"
    PEER_CLOSE = "close of the peer"

    RESET = "reset of the link"
    LOST = "loss of the node"


LOCAL_INPUTS: Final = frozenset({Input.SEND, Input.SEND_EOF, Input.CLOSE})

_ALWAYS: Final[Mapping[Input, TunnelState]] = {
    Input.CLOSE: TunnelState.CLOSED,
    Input.PEER_CLOSE: TunnelState.CLOSED,
    Input.LOST: TunnelState.CLOSED,
}


def _stay(state: TunnelState, *inputs: Input) -> dict[Input, TunnelState]:
    return dict.fromkeys(inputs, state)


TRANSITIONS: Final[Mapping[TunnelState, Mapping[Input, TunnelState]]] = {
    TunnelState.OPENING: {
        **_ALWAYS,
        Input.ACCEPT: TunnelState.OPEN,
        Input.REFUSE: TunnelState.CLOSED,
        # The acceptance was lost and what followed it was not: dropped here, asked for again later.
        **_stay(TunnelState.OPENING, Input.CHUNK, Input.REPEATED, Input.END_OF_FILE, Input.ACK, Input.RESET),
    },
    TunnelState.OPEN: {
        **_ALWAYS,
        Input.SEND_EOF: TunnelState.SENT_EOF,
        Input.END_OF_FILE: TunnelState.GOT_EOF,
        **_stay(TunnelState.OPEN, Input.SEND, Input.ACCEPT, Input.CHUNK, Input.REPEATED, Input.ACK, Input.RESET),
    },
    TunnelState.SENT_EOF: {
        **_ALWAYS,
        Input.END_OF_FILE: TunnelState.ENDED,
        **_stay(
            TunnelState.SENT_EOF,
            Input.SEND_EOF, Input.ACCEPT, Input.CHUNK, Input.REPEATED, Input.ACK, Input.RESET,
        ),
    },
    TunnelState.GOT_EOF: {
        **_ALWAYS,
        Input.SEND_EOF: TunnelState.ENDED,
        **_stay(TunnelState.GOT_EOF, Input.SEND, Input.ACCEPT, Input.REPEATED, Input.ACK, Input.RESET),
    },
    TunnelState.ENDED: {
        **_ALWAYS,
        **_stay(TunnelState.ENDED, Input.SEND_EOF, Input.ACCEPT, Input.REPEATED, Input.ACK, Input.RESET),
    },
    TunnelState.CLOSED: _stay(TunnelState.CLOSED, *(one for one in Input if one not in {Input.SEND, Input.SEND_EOF})),
}  # fmt: skip


def following(state: TunnelState, input_: Input) -> TunnelState:
    """Return the state after ``input_``.

    Raises:
        LocalProtocolError: this side may not do that now.
        RemoteProtocolError: the peer may not do that now.
    """
    after = TRANSITIONS[state].get(input_)
    if after is None:
        kind = LocalProtocolError if input_ in LOCAL_INPUTS else RemoteProtocolError
        raise kind(f"no {input_.value} is possible in a tunnel that is {state.value}")
    return after
