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


class State(enum.Enum):
    """State of one end of a tunnel."""

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
    """Nothing is sent or taken any more; what had arrived may still be read."""


class Input(enum.Enum):
    """What can happen to one end of a tunnel."""

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

_ALWAYS: Final[Mapping[Input, State]] = {
    Input.CLOSE: State.CLOSED,
    Input.PEER_CLOSE: State.CLOSED,
    Input.LOST: State.CLOSED,
}


def _stay(state: State, *inputs: Input) -> dict[Input, State]:
    return dict.fromkeys(inputs, state)


TRANSITIONS: Final[Mapping[State, Mapping[Input, State]]] = {
    State.OPENING: {
        **_ALWAYS,
        Input.ACCEPT: State.OPEN,
        Input.REFUSE: State.CLOSED,
        # The acceptance was lost and what followed it was not: dropped here, asked for again later.
        **_stay(State.OPENING, Input.CHUNK, Input.REPEATED, Input.END_OF_FILE, Input.ACK, Input.RESET),
    },
    State.OPEN: {
        **_ALWAYS,
        Input.SEND_EOF: State.SENT_EOF,
        Input.END_OF_FILE: State.GOT_EOF,
        **_stay(State.OPEN, Input.SEND, Input.ACCEPT, Input.CHUNK, Input.REPEATED, Input.ACK, Input.RESET),
    },
    State.SENT_EOF: {
        **_ALWAYS,
        Input.END_OF_FILE: State.ENDED,
        **_stay(
            State.SENT_EOF,
            Input.SEND_EOF, Input.ACCEPT, Input.CHUNK, Input.REPEATED, Input.ACK, Input.RESET,
        ),
    },
    State.GOT_EOF: {
        **_ALWAYS,
        Input.SEND_EOF: State.ENDED,
        **_stay(State.GOT_EOF, Input.SEND, Input.ACCEPT, Input.REPEATED, Input.ACK, Input.RESET),
    },
    State.ENDED: {
        **_ALWAYS,
        **_stay(State.ENDED, Input.SEND_EOF, Input.ACCEPT, Input.REPEATED, Input.ACK, Input.RESET),
    },
    State.CLOSED: _stay(State.CLOSED, *(input_ for input_ in Input if input_ not in {Input.SEND, Input.SEND_EOF})),
}  # fmt: skip


def following(state: State, input_: Input) -> State:
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
