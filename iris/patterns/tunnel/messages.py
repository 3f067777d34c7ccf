"""Terms of the tunnel protocol; its messages are in ``iris.kernel.wire.kinds``.

Rules of this file:

- The opener counts its tunnels to each node from 1.  The count is the tunnel's id, and the other end sends it negated.
  So an id shows which end a message is for, and a node can hold a tunnel to itself.
- Chunks and the end of file are numbered together, from 0, in each direction.
- Credit is counted in *cost*: the bytes of a chunk and ``CHUNK_COST`` for having one at all.  Both ends add the cost up
  to the same sum, so credit travels as a total, and a lost or repeated acknowledgement does no harm.
"""

from __future__ import annotations

import enum
from typing import Final, final

from msgspec import Struct

from iris.kernel.wire import kinds

CHUNK_COST: Final = 128
"""Cost of a chunk besides its bytes.  About what Python spends on one, so that a window of empty messages takes no more
memory than a window of data."""

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
    """Reason for the end of a tunnel."""

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
    """The other end refused the tunnel.  Never on the wire."""


@final
class Refusal(Struct, frozen=True, kw_only=True):
    """Refusal of a tunnel: a short stable word, a text for people, and when to try again."""

    code: str
    text: str = ""
    retry_after: float = 0.0
    """Seconds after which to try again."""

    @staticmethod
    def of(message: kinds.TunnelRefuse) -> Refusal:
        """Return the refusal in a message of the other end."""
        code, text = message.code[:64], readable(message.text)
        return Refusal(code=code, text=text, retry_after=message.retry_after / 1000)

    def message(self, identifier: int) -> kinds.TunnelRefuse:
        """Return the form on the wire."""
        return kinds.TunnelRefuse(identifier, self.code, readable(self.text), int(self.retry_after * 1000))


def close_message(identifier: int, code: CloseCode, received: int, reason: str) -> kinds.TunnelClose:
    """Make a close."""
    return kinds.TunnelClose(identifier, int(code), received, readable(reason))


def readable(text: str) -> str:
    """Cut a text and take the control characters out: it ends up in logs and on terminals."""
    return "".join(character if character.isprintable() else "?" for character in text[:_MAX_REASON])
