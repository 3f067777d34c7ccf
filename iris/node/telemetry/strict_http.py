"""h11 without what it takes beyond HTTP: what another program on the way may read in another way.

That one would see other requests than this one does.  RFC 9112 lets a server refuse each: lines that end with LF alone
(section 2.2), those that go on in the next one (5.2), CR alone in the line before a chunk (2.2), and bodies whose end
is said twice, or by what HTTP/1.0 does not know (6.1).
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

    def _extract_next_receive_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        event = super()._extract_next_receive_event()
        if isinstance(event, h11.Request):
            named = {name for name, _ in event.headers}
            if b"transfer-encoding" in named and (b"content-length" in named or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("a body ends by its chunks or by its length, and in HTTP/1.0 by that")
        return event


@final
class _StrictLines(ReceiveBuffer):
    """Buffer of h11 for the lines of a head, of the trailer behind chunks, and before each chunk."""

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the next line, if that is here."""
        line = super().maybe_extract_next_line()
        if line is not None and b"\r" in line[:-2]:
            raise h11.RemoteProtocolError("the line before a chunk has a CR in it")
        return line

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines up to an empty one, if that is here."""
        if self._data[:2] != b"\r\n":
            start = max(0, self._multiple_lines_search - 3)  # what is before it was looked at
            end = self._data.find(b"\r\n\r\n", start)
            if _LOOSE.search(self._data, start, len(self._data) if end < 0 else end + 4):
                raise h11.RemoteProtocolError("a line ends with CR and LF, and does not go on in the next one")
        return super().maybe_extract_lines()
