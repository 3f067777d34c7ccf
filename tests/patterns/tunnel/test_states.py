"""Every state of a tunnel end against everything that can happen to it."""

from __future__ import annotations

import pytest

from iris.kernel.config import Config
from iris.kernel.errors import LocalProtocolError
from iris.kernel.wire import kinds
from iris.patterns.tunnel.machine import TunnelMachine
from iris.patterns.tunnel.messages import END, CloseCode
from iris.patterns.tunnel.states import TRANSITIONS, Input, TunnelState
from tests.support.messages import arrived

OPENING, OPEN, SENT, GOT, ENDED, CLOSED = TunnelState

# One column for each state, in the order above.  "local" and "remote" are errors of this side and of the peer.
TABLE = {
    Input.SEND: ("local", OPEN, "local", GOT, "local", "local"),
    Input.SEND_EOF: ("local", SENT, SENT, ENDED, ENDED, "local"),
    Input.CLOSE: (CLOSED, CLOSED, CLOSED, CLOSED, CLOSED, CLOSED),
    Input.ACCEPT: (OPEN, OPEN, SENT, GOT, ENDED, CLOSED),
    Input.REFUSE: (CLOSED, "remote", "remote", "remote", "remote", CLOSED),
    Input.CHUNK: (OPENING, OPEN, SENT, "remote", "remote", CLOSED),
    Input.REPEATED: (OPENING, OPEN, SENT, GOT, ENDED, CLOSED),
    Input.END_OF_FILE: (OPENING, GOT, ENDED, "remote", "remote", CLOSED),
    Input.ACK: (OPENING, OPEN, SENT, GOT, ENDED, CLOSED),
    Input.PEER_CLOSE: (CLOSED, CLOSED, CLOSED, CLOSED, CLOSED, CLOSED),
    Input.RESET: (OPENING, OPEN, SENT, GOT, ENDED, CLOSED),
    Input.LOST: (CLOSED, CLOSED, CLOSED, CLOSED, CLOSED, CLOSED),
}
CASES = [
    pytest.param(state, input_, expected, id=f"{state.value}, {input_.value}")
    for input_, row in TABLE.items()
    for state, expected in zip(TunnelState, row, strict=True)
]


def test_the_table_covers_every_state_and_every_input() -> None:
    assert set(TABLE) == set(Input)
    assert set(TRANSITIONS) == set(TunnelState)


def machine_in(state: TunnelState) -> TunnelMachine:
    """Return a machine of the opener, brought to a state by way of the wire; one chunk has arrived where it can."""
    opening = kinds.TunnelOpen(1, "c", None, None, 2**20, 2**20)
    machine = TunnelMachine(identifier=1, opening=opening, config=Config(), now=0)
    if state is OPENING:
        return machine
    machine.receive(kinds.TunnelAccept(-1, 2**20, 2**20), 0)
    machine.receive(kinds.TunnelChunk(-1, 0, END, b"first", 0), 0)
    if state in {SENT, ENDED}:
        machine.send_eof()
    if state in {GOT, ENDED}:
        machine.receive(kinds.TunnelEof(-1, 1), 0)
    if state is CLOSED:
        machine.close(CloseCode.ABORTED, "a test")
    assert machine.state is state
    return machine


def perform(machine: TunnelMachine, input_: Input) -> None:
    next_number = machine.receiving.received
    match input_:
        case Input.SEND:
            machine.send(b"data", packed=False)
        case Input.SEND_EOF:
            machine.send_eof()
        case Input.CLOSE:
            machine.close(CloseCode.ABORTED, "a test")
        case Input.ACCEPT:
            machine.receive(kinds.TunnelAccept(-1, 2**20, 2**20), 1)
        case Input.REFUSE:
            machine.receive(kinds.TunnelRefuse(-1, "not_allowed", "", 0), 1)
        case Input.CHUNK:
            machine.receive(kinds.TunnelChunk(-1, next_number, END, b"data", 0), 1)
        case Input.REPEATED:
            machine.receive(kinds.TunnelChunk(-1, 0, END, b"first", 0), 1)
        case Input.END_OF_FILE:
            machine.receive(kinds.TunnelEof(-1, next_number), 1)
        case Input.ACK:
            machine.receive(kinds.TunnelAck(-1, 0, 2**20, next_number, 0), 1)
        case Input.PEER_CLOSE:
            machine.receive(kinds.TunnelClose(-1, int(CloseCode.ABORTED), 0, "a test"), 1)
        case Input.RESET:
            machine.reset()
        case Input.LOST:
            machine.lost("a test")


@pytest.mark.parametrize(("state", "input_", "expected"), CASES)
def test_machines_follow_the_table(state: TunnelState, input_: Input, expected: TunnelState | str) -> None:
    machine = machine_in(state)
    if expected == "local":
        with pytest.raises(LocalProtocolError):
            perform(machine, input_)
        assert machine.state is state
        return
    perform(machine, input_)
    if expected == "remote":
        assert machine.state is CLOSED
        assert machine.ending is not None
        assert machine.ending.code is CloseCode.VIOLATION
        assert machine.final_message is not None
        assert type(machine.final_message) is kinds.TunnelClose
    else:
        assert machine.state is expected
        assert (machine.ending is not None) == (machine.state is CLOSED)


@pytest.mark.parametrize("kind", [kinds.TunnelAccept, kinds.TunnelRefuse])
def test_the_opener_does_not_answer_its_own_opening(kind: type[kinds.TunnelAccept | kinds.TunnelRefuse]) -> None:
    machine = TunnelMachine(identifier=-1, opening=None, config=Config(), now=0)
    fields = (2**20, 2**20) if kind is kinds.TunnelAccept else ("not_allowed", "", 0)
    machine.receive(arrived(kind, 1, *fields), 0)
    assert machine.ending is not None
    assert machine.ending.code is CloseCode.VIOLATION
