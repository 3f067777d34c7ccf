"""A tunnel as a ``trio.abc.Stream``: a stream of bytes for code that wants one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import trio

from iris.kernel.errors import TunnelBroken

if TYPE_CHECKING:
    from iris.patterns.tunnel.tunnel import Tunnel

_PIECE: Final = 32 * 1024
"""Bytes handed over at a time: one chunk."""


@final
class TunnelStream(trio.abc.HalfCloseableStream):
    """Bytes through a tunnel, any number, throttled.  Made by ``Tunnel.as_stream``.

    It follows the rules of ``trio.abc.HalfCloseableStream``; ``TunnelBroken`` shows as ``BrokenResourceError``.
    Nothing else may receive from the tunnel meanwhile.
    """

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._rest = b""
        self._sending = False
        self._receiving = False

    def __repr__(self) -> str:
        return f"<TunnelStream over {self._tunnel!r}>"

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, any number of them.  If it is cancelled, some of them were sent and some not."""
        self._start_sending()
        try:
            await trio.lowlevel.checkpoint()
            self._tunnel._check_sendable()
            with memoryview(data).cast("B") as view:
                for start in range(0, len(view), _PIECE):
                    await self._tunnel._send_encoded(bytes(view[start : start + _PIECE]), packed=False)
        except TunnelBroken as error:
            raise trio.BrokenResourceError(str(error)) from error
        finally:
            self._sending = False

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until a chunk can be sent without waiting.  Cancelling has no effect."""
        self._start_sending()
        try:
            await self._tunnel._wait_sendable()
            self._tunnel._check_sendable()
        except TunnelBroken as error:
            raise trio.BrokenResourceError(str(error)) from error
        finally:
            self._sending = False

    async def send_eof(self) -> None:
        """Send the end of file; receiving goes on.  If it is cancelled, nothing was sent."""
        self._start_sending()
        try:
            await self._tunnel.send_eof()
        except TunnelBroken as error:
            raise trio.BrokenResourceError(str(error)) from error
        finally:
            self._sending = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return some bytes, at most ``max_bytes``; b"" at the end.  If it is cancelled, none are lost."""
        if max_bytes is not None:
            if type(max_bytes) is not int:
                raise TypeError(f"max_bytes is {max_bytes!r}: use a whole number or None")
            if max_bytes < 1:
                raise ValueError(f"max_bytes is {max_bytes}: use a number above 0")
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving from this stream")
        self._receiving = True
        try:
            await trio.lowlevel.checkpoint()
            if self._rest and not self._tunnel.is_closed:
                data = self._rest
            else:
                data = await self._tunnel._receive_piece()
        except TunnelBroken as error:
            raise trio.BrokenResourceError(str(error)) from error
        finally:
            self._receiving = False
        if max_bytes is None or len(data) <= max_bytes:
            self._rest = b""
            return data
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def aclose(self) -> None:
        """Close, once the other end has everything that was sent.  If it is cancelled, it aborts the tunnel.

        It is no error if the other end has closed before: what it did not want to read is dropped.

        Raises:
            BrokenResourceError: the tunnel broke before the other end had everything.
        """
        try:
            await self._tunnel.aclose()
        except TunnelBroken as error:
            if not self._tunnel.was_finished_by_peer:
                raise trio.BrokenResourceError(str(error)) from error

    def _start_sending(self) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending through this stream")
        self._sending = True
