"""A listener that waits where the system has nothing left to accept with."""

from __future__ import annotations

import logging
from typing import Final, final

import trio

_log: Final = logging.getLogger("iris")

_PAUSE: Final = 1.0
"""Seconds without accepting where no descriptor is left for one more."""


@final
class PatientListener(trio.abc.Listener[trio.SocketStream]):
    """Accepts connections; where none can be accepted it says so once, and tries again each second.

    Args:
        inner: the listener that accepts; errors of one connection it passes over itself.
        trouble: the text of the log, such as "metrics cannot be asked for".
    """

    def __init__(self, inner: trio.SocketListener, trouble: str) -> None:
        self._inner = inner
        self._trouble = trouble
        self._is_exhausted = False

    async def accept(self) -> trio.SocketStream:
        """Return the next connection.  Cancelling leaves it to the next call."""
        while True:
            try:
                stream = await self._inner.accept()
            except OSError as error:
                if not self._is_exhausted:
                    self._is_exhausted = True
                    reason = str(error.strerror or error).lower()
                    _log.error("%s: %s", self._trouble, reason, extra={"reason": reason})
                await trio.sleep(_PAUSE)
            else:
                self._is_exhausted = False
                return stream

    async def aclose(self) -> None:
        """Stop listening."""
        await self._inner.aclose()
