"""Messages of the tunnel protocol; see ``iris.kernel.wire.kinds`` for the fields.

Rules of this file:

- The opener counts its tunnels to each node from 1.  The count is the tunnel's id, and the other end sends it negated.
  So an id shows which end a message is for, and a node can hold a tunnel to itself.
- Chunks and the end of file are numbered together, from 0, in each direction.
- Credit is counted in *cost*: the bytes of a chunk and ``CHUNK_COST`` for having one at all.  Both ends add the cost up
  to the same sum, so credit travels as a total, and a lost or repeated acknowledgement does no harm.
- Everything read here comes from a peer; RemoteProtocolError is the one error raised.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import MAX_NUMBER, Message, kinds

CHUNK_COST: Final = 128
"""What a chunk costs besides its bytes.  About what Python spends on one, so that a window of empty messages takes
no more memory than a window of data."""

SMALLEST_PIECE: Final = 512
"""No piece but the last of a message is smaller: a message of endless empty pieces would never reach its limit."""

SMALLEST_WINDOW: Final = 4096
"""Below this a window is all overhead.  Both ends may rely on it."""

END: Final = 1
"""Flag of a chunk: the message ends with it."""

PACKED: Final = 2
"""Flag of a chunk: the message is a packed value and not bytes.  The same on every chunk of a message."""

ASK: Final = 1
"""Flag of an acknowledgement: answer with your own."""

RESEND: Final = 2
"""Flag of an acknowledgement: what came after ``received`` was lost, send it again."""

_MAX_REASON: Final = 200


class CloseCode(enum.IntEnum):
    """Why a tunnel ended."""

    FINISHED = 0
    """The closing end had sent all it wanted, and the other end had it."""
    ABORTED = 1
    """The closing end failed or gave up."""
    VIOLATION = 2
    """The other end broke the protocol."""
    FORGOTTEN = 3
    """The end knows no such tunnel."""
    IDLE = 4
    """Nothing moved for ``Config.tunnel_idle``."""
    SILENT = 5
    """The other end did not answer for ``Config.tunnel_silence``."""
    LOST = 6
    """The node at the other end was given up, and may live after all."""
    REFUSED = 7
    """The other end did not take the tunnel.  Never on the wire."""


class TunnelChunk(NamedTuple):
    """One piece of a message."""

    sequence: int
    flags: int
    data: bytes
    mark: int = 0
    """To be sent back at once, if it is not 0; see ``iris.patterns.tunnel.flow_control``."""


class Acknowledgement(NamedTuple):
    """Acknowledgement: the progress of one end in both directions."""

    received: int
    """Everything numbered below has arrived."""
    granted: int
    """The other end may send chunks up to this sum of their costs."""
    sent: int
    """Everything numbered below was put on the link before this."""
    flags: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a node does not take a tunnel: a short stable word, a text for people, and when to try again."""

    code: str
    text: str = ""
    retry_after: float = 0.0
    """Seconds."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelOpen:
    """Opening of a tunnel: what the opener asks for."""

    cluster: str
    operation: str | None
    headers: object
    window: int
    limit: int


def _whole(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= MAX_NUMBER


def read_id_untrusted(message: Message) -> int:
    """Return the id of any message about tunnels."""
    if len(message) < 2 or type(message[1]) is not int or not 0 < abs(message[1]) <= MAX_NUMBER:
        raise RemoteProtocolError("a message about a tunnel carries its id")
    number: int = message[1]
    return number


def read_marked_untrusted(message: Message) -> int:
    """Return a mark that has come back."""
    if len(message) == 2 and _whole(message[1]):
        number: int = message[1]
        return number
    raise RemoteProtocolError("a mark that comes back carries its number")


def read_open_untrusted(message: Message) -> TunnelOpen:
    """Read an opening; its headers are checked by the service that gets them."""
    match message:
        case (_, _, str() as cluster, str() | None as operation, headers, int() as window, int() as limit):
            if _whole(window, SMALLEST_WINDOW) and _whole(limit, 1):
                return TunnelOpen(cluster=cluster, operation=operation, headers=headers, window=window, limit=limit)
        case _:
            pass
    raise RemoteProtocolError(f"a tunnel opens with a cluster, a window of at least {SMALLEST_WINDOW} and a limit")


def read_accept_untrusted(message: Message) -> tuple[int, int]:
    """Return the window and the largest message of the end that accepts."""
    match message:
        case (_, _, window, limit) if _whole(window, SMALLEST_WINDOW) and _whole(limit, 1):
            return window, limit
        case _:
            pass
    raise RemoteProtocolError(f"a tunnel is accepted with a window of at least {SMALLEST_WINDOW} and a limit")


def read_refuse_untrusted(message: Message) -> Refusal:
    """Read why the tunnel was not taken."""
    match message:
        case (_, _, str() as code, str() as text, retry_after) if _whole(retry_after):
            return Refusal(code=code[:64], text=_readable(text), retry_after=retry_after / 1000)
        case _:
            pass
    raise RemoteProtocolError("a tunnel is refused with a code, a text and a time")


def read_chunk_untrusted(message: Message) -> TunnelChunk:
    """Read a chunk.  Called for each, so plainly written."""
    if len(message) == 6:
        _, _, sequence, flags, data, mark = message
        if type(data) is bytes and _whole(sequence) and _whole(flags) and flags <= END | PACKED and _whole(mark):
            return TunnelChunk(sequence, flags, data, mark)
    raise RemoteProtocolError("a chunk carries a sequence number, flags, bytes and a mark")


def read_eof_untrusted(message: Message) -> int:
    """Return the sequence number of the end of file."""
    if len(message) == 3 and _whole(message[2]):
        sequence: int = message[2]
        return sequence
    raise RemoteProtocolError("the end of file carries a sequence number")


def read_ack_untrusted(message: Message) -> Acknowledgement:
    """Read an acknowledgement."""
    if len(message) == 6 and all(_whole(field) for field in message[2:]):
        return Acknowledgement._make(message[2:])
    raise RemoteProtocolError("an acknowledgement carries four numbers")


def read_close_untrusted(message: Message) -> tuple[CloseCode, int, str]:
    """Return why the tunnel ends, how much had arrived at the end that closes it, and its words for people."""
    match message:
        case (_, _, int() as code, received, str() as reason) if 0 <= code <= CloseCode.LOST and _whole(received):
            return CloseCode(code), received, _readable(reason)
        case _:
            pass
    raise RemoteProtocolError("a close carries a code, a sequence number and a reason")


def close_message(identifier: int, code: CloseCode, received: int, reason: str) -> Message:
    """Make a close."""
    return (kinds.TUNNEL_CLOSE, identifier, int(code), received, _readable(reason))


def refuse_message(identifier: int, refusal: Refusal) -> Message:
    """Make a refusal."""
    text = _readable(refusal.text)
    return (kinds.TUNNEL_REFUSE, identifier, refusal.code, text, int(refusal.retry_after * 1000))


def _readable(text: str) -> str:
    """Cut a text and take the control characters out: it ends up in logs and on terminals."""
    return "".join(character if character.isprintable() else "?" for character in text[:_MAX_REASON])
