"""h11 without what it takes beyond HTTP: lines that end with LF alone, and those that go on in the next one.

Another program on the way may read them in another way, and so see other requests than this one does (RFC 9112,
sections 2.2 and 5.2, lets a server refuse both).
"""

from __future__ import annotations

import re
from typing import Final, final

import h11
from h11._receivebuffer import ReceiveBuffer

_LOOSE: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")


class StrictConnection(h11.Connection):
    """A server's machine.  What it does not take raises ``h11.RemoteProtocolError``.

    Args:
        max_head: bytes of the head of a request that is not whole yet.
    """

    def __init__(self, max_head: int) -> None:
        super().__init__(h11.SERVER, max_head)
        self._receive_buffer = _StrictLines()


@final
class _StrictLines(ReceiveBuffer):
    """Where h11 takes the lines of a head, and of the trailer behind chunks."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines up to an empty one, if that is here."""
        if self._data[:2] != b"\r\n":
            start = max(0, self._multiple_lines_search - 3)  # what is before it was looked at
            end = self._data.find(b"\r\n\r\n", start)
            if _LOOSE.search(self._data, start, len(self._data) if end < 0 else end + 4):
                raise h11.RemoteProtocolError("a line ends with CR and LF, and does not go on in the next one")
        return super().maybe_extract_lines()
