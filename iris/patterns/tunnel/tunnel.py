"""Tunnel: the public handle of an ordered two-way channel of messages with backpressure, and its stream of bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Final, Self, final

import msgspec
import trio

from iris.kernel import wire
from iris.kernel.errors import PayloadTooLarge, RemoteProtocolError, TunnelBroken
from iris.kernel.numerals import as_whole, shown
from iris.kernel.shapes import is_group
from iris.kernel.tasks import checkpoint_after_error, checkpointed
from iris.patterns.messages import Sender
from iris.patterns.payloads import encoded
from iris.patterns.tunnel.endpoint import TunnelEndpoint
from iris.patterns.tunnel.file_transfer import FileSummary as FileSummary
from iris.patterns.tunnel.file_transfer import Progress, receive_file, send_file
from iris.patterns.tunnel.machine import TunnelStatistics as TunnelStatistics
from iris.patterns.tunnel.messages import CloseCode
from iris.patterns.tunnel.states import TunnelState

_TURN: Final = 64
"""Units of work between two checkpoints, a unit being one message or 4 KiB of it: some 200 us."""

_STREAM_PIECE: Final = 32 * 1024
"""Size of what a stream hands over at a time where chunks are smaller, in bytes."""

_MESSAGES: Final = msgspec.msgpack.Encoder()

_HALF_CLOSED: Final = frozenset({TunnelState.SENT_EOF, TunnelState.ENDED})


@final
class Tunnel:
    """An ordered, throttled, two-way channel between two nodes.  Made by ``node.open_tunnel`` or given to a handler.

    What is sent at one end arrives at the other in order, nothing lost and nothing doubled, whatever the connections
    between them go through, for as long as both nodes live.  If that becomes impossible, both ends get
    ``TunnelBroken``: there is no silent truncation.

    Memory at each end is at most two windows of unsent and unacknowledged messages, and one window and one message
    (``Config.max_payload``) of unread ones, however much passes through.  A window is ``Config.tunnel_window``, to
    other sites ``Config.site_tunnel_window``; of many tunnels that one node opens, the later ones have smaller ones.

    Several tasks may send at the same time; their messages leave in the order of the calls.  One task may receive;
    cancelling that loses no message.  Use it as a context manager: leaving the block closes it, and an error in the
    block is reported to the other end.
    """

    __slots__ = (
        "_closed",
        "_end",
        "_limit",
        "_receiving",
        "_work",
        "cluster",
        "headers",
        "operation",
        "sender",
    )

    def __init__(
        self,
        end: TunnelEndpoint,
        *,
        limit: int,
        sender: Sender,
        cluster: str,
        operation: str | None,
        headers: Mapping[str, str],
    ) -> None:
        self.sender: Final = sender
        """The other end: the node, and the cluster it speaks for, as its certificate proves."""
        self.cluster: Final = cluster
        """Cluster that the tunnel was opened to."""
        self.operation: Final = operation
        self.headers: Final = headers
        """Headers that the opener sent along."""
        self._end = end
        self._limit: Final = min(limit, end.machine.sending.limit)
        self._receiving = False
        self._closed = False
        self._work = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._end.machine.state.value
        return f"<Tunnel to cluster {self.cluster!r}, node {self._end.node[:8]}: {state}>"

    # -- sending --------------------------------------------------------------------------------------------

    async def send(self, payload: object) -> None:
        """Send one message: a payload as for ``Node.request``.

        Returns as soon as the message is queued here.  It waits while two windows are unsent or unacknowledged: a
        slow reader slows its sender.  A message that fits is queued without waiting; other tasks run at least every
        64 messages or 256 KiB.

        Raises:
            PayloadTooLarge: more bytes than the smaller ``Config.max_payload`` of the two ends.  Send larger things
                with ``as_stream`` or ``send_file``.
            LocalProtocolError: the payload cannot be sent.
            TunnelBroken: the tunnel has ended.
            trio.ClosedResourceError: it was closed here, or ``send_eof`` was called.

        If it is cancelled, the message was not queued and nothing of it is sent; if it returns, all of it was.
        """
        try:
            data, packed = self._encoded(payload)
            await self._send_encoded(data, packed=packed)
        except Exception:
            await checkpoint_after_error()
            raise

    async def _send_message(self, message: object) -> None:
        """Send a message of Iris's own as ``send`` does, whatever it consists of but for keys: texts.  C packs it."""
        data = _MESSAGES.encode(message)
        if len(data) > self._limit:
            raise self._too_large()
        await self._send_encoded(data, packed=True)

    def _send_at_once(self, payload: object) -> bool:
        """Send as ``send`` does if it would wait for nothing; return whether the message is queued.

        For any code of the node's thread, in a task of trio or not.
        """
        end, sending = self._end, self._end.machine.sending
        if self._work >= _TURN or end.senders or not sending.has_room(1):
            return False
        data, packed = self._encoded(payload)
        self._check_sendable()
        if not sending.has_room(len(data)):
            return False
        end.machine.send(data, packed=packed)
        end.offer()
        self._work += 1 + (len(data) >> 12)
        return True

    def _encoded(self, payload: object) -> tuple[bytes | memoryview, bool]:
        """Return a message encoded, and whether it is a packed value.

        Raises:
            PayloadTooLarge, LocalProtocolError: see ``send``.
        """
        try:
            return wire.split_payload(encoded(payload, self._limit))
        except PayloadTooLarge:
            raise self._too_large() from None

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"a message of more than {self._limit} bytes to cluster {self.cluster!r}: send larger things with "
            "as_stream() or send_file()"
        )

    async def _send_encoded(self, data: bytes | memoryview, *, packed: bool) -> None:
        """Send an encoded message as ``send`` does, also when cancelled.  What a view shows must not change."""
        end = self._end
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_sendable()
        size = len(data)
        waits = bool(end.senders) or not end.machine.sending.has_room(size)
        if waits:
            await end.wait_room(size, self._is_unsendable)
            self._check_sendable()
        # From here on the message is queued and will be sent; what follows cannot be cancelled.
        end.machine.send(data, packed=packed)
        end.offer()
        self._work = 0 if waits else self._work + 1 + (size >> 12)  # others have had their turn, or not
        if self._work >= _TURN:
            await self._pass_turn()

    async def _wait_sendable(self) -> None:
        """Wait until a message of one chunk can be queued at once, or sending has become impossible.

        Cancelling it changes nothing.
        """
        await trio.lowlevel.checkpoint()
        end = self._end
        if not self._is_unsendable() and (end.senders or not end.machine.sending.has_room(1)):
            await end.wait_room(1, self._is_unsendable)

    @checkpointed
    async def send_eof(self) -> None:
        """Send the end of file; the other end's ``receive`` raises EndOfChannel after the last message.

        Receiving goes on.  A second call has no effect.  It does not wait for what is queued.

        Raises:
            TunnelBroken: the tunnel ended before everything sent had arrived.
            trio.BusyResourceError: another task is waiting in ``send``.
            trio.ClosedResourceError: the tunnel was closed here.

        If it is cancelled, nothing was sent.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise trio.ClosedResourceError("this tunnel is closed")
        end = self._end
        if end.senders:
            raise trio.BusyResourceError("another task is sending through this tunnel")
        ending = end.machine.ending
        if ending is None:
            end.machine.send_eof()
            end.offer()
        elif ending.code is not CloseCode.FINISHED or ending.lost:
            raise self._broken()
        await trio.lowlevel.cancel_shielded_checkpoint()

    # -- receiving ------------------------------------------------------------------------------------------

    async def receive(self) -> Any:
        """Return the next message of the other end, whole.

        Raises:
            trio.EndOfChannel: the other end has called ``send_eof`` or closed the tunnel, and everything it sent
                was received.
            TunnelBroken: the tunnel ended before that, or the other end sent what cannot be decoded, which ends it.
                Whole messages that had arrived come first.
            trio.BusyResourceError: another task is receiving.
            trio.ClosedResourceError: the tunnel was closed here.

        If it is cancelled, no message is lost: the next call returns it.
        """
        try:
            return self._decoded(await self._read(pieces=False))
        except Exception:
            await checkpoint_after_error()
            raise

    def _receive_at_once(self) -> tuple[Any] | None:
        """Return the next message as ``receive`` does, in a tuple, if it is here; else None, and nothing has happened.

        For any code of the node's thread, in a task of trio or not.

        Raises:
            TunnelBroken: it cannot be decoded.
        """
        if self._receiving or self._closed or self._work >= _TURN:
            return None
        message = self._end.machine.receiving.read()
        if message is None:
            return None
        self._end.offer()
        self._work += 1 + (len(message[0]) >> 12)
        return (self._decoded(message),)

    def _watch_readable(self, woken: Callable[[], None]) -> Callable[[], None] | None:
        """Have ``woken`` called when there is a message, or never will be one; nobody else can receive meanwhile.

        For code of the node's thread that is no task of trio's.

        Returns:
            What ends that.  None if there is nothing to wait for: ``receive`` says what it is.
        """
        end, receiving = self._end, self._end.machine.receiving
        if self._receiving or self._closed or receiving.messages or self._is_unreadable():
            return None
        self._receiving = True
        unwatch = end.watch(lambda: receiving.messages > 0 or self._is_unreadable(), woken)

        def stop() -> None:
            unwatch()
            self._receiving = False

        return stop

    def _decoded(self, message: tuple[bytes, bool]) -> Any:
        data, packed = message
        try:
            return wire.decode_payload_untrusted(wire.join_payload(data, packed=packed))
        except RemoteProtocolError as error:
            raise self._fail(str(error)) from None

    async def _receive_piece(self) -> bytes:
        """Return the next bytes of the other end, wherever its messages end; b"" at the end.  Else as ``receive``.

        Cancelling it loses none of them.

        Raises:
            TunnelBroken: also if the other end sent a value that is not bytes.
        """
        while True:
            try:
                data, packed = await self._read(pieces=True)
            except trio.EndOfChannel:
                return b""
            if packed:
                raise self._fail("a value was sent where bytes are read as a stream")
            if data:
                return data

    async def _read(self, *, pieces: bool) -> tuple[bytes, bool]:
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving from this tunnel")
        await trio.lowlevel.checkpoint_if_cancelled()
        end = self._end
        receiving = end.machine.receiving
        read = receiving.read_piece if pieces else receiving.read
        message = None if self._closed else read()
        waits = message is None and not self._is_unreadable()
        try:
            if waits:
                self._receiving = True
                try:
                    await end.wait_readable(
                        lambda: (receiving.has_piece if pieces else receiving.messages > 0) or self._is_unreadable()
                    )
                finally:
                    self._receiving = False
            if self._closed:
                raise trio.ClosedResourceError("this tunnel is closed")
            if message is None:
                message = read()
            if message is None:
                if receiving.has_eof:
                    raise trio.EndOfChannel
                raise self._broken()
        finally:
            end.offer()  # receipt and credit, of the message as well: they were left to this task while it waited
        # From here on the message is the caller's; what follows cannot be cancelled.
        self._work = 0 if waits else self._work + 1 + (len(message[0]) >> 12)
        if self._work >= _TURN:
            await self._pass_turn()
        return message

    def __aiter__(self) -> Self:
        """Iterate over the messages of the other end until its end of file."""
        return self

    async def __anext__(self) -> Any:
        """See ``receive``; cancelling the iteration loses no message."""
        try:
            return self._decoded(await self._read(pieces=False))
        except Exception as error:
            await checkpoint_after_error()
            if isinstance(error, trio.EndOfChannel):
                raise StopAsyncIteration from None
            raise

    # -- streams and files ----------------------------------------------------------------------------------

    def as_stream(self) -> TunnelStream:
        """Return a ``trio.abc.HalfCloseableStream`` over this tunnel: TLS, h11, anything that wants bytes.

        Messages have no bounds in it.  The other end may use a stream, or bytes messages.
        """
        return TunnelStream(self)

    @checkpointed
    async def send_file(self, path: str | PathLike[str], progress: Progress | None = None) -> FileSummary:
        """Send a file of any size, for ``receive_file`` at the other end; see ``iris.patterns.tunnel.file_transfer``.

        If it is cancelled, the other end may be in the middle of a file: close the tunnel.
        """
        return await send_file(
            self.send, path, progress, max_piece=self.max_message, chunk=self._end.machine.sending.piece
        )

    @checkpointed
    async def receive_file(
        self, path: str | PathLike[str], progress: Progress | None = None, *, max_bytes: int | None = None
    ) -> FileSummary:
        """Receive what ``send_file`` sends at the other end; see ``iris.patterns.tunnel.file_transfer``.

        If it is cancelled, nothing is left at ``path``, and the tunnel is in the middle of a file: close it.

        Raises:
            PayloadTooLarge: the file is larger than ``max_bytes``; the tunnel is closed with that error.
            TunnelBroken: see ``receive``; also if something else than a file was sent, or the hash is wrong.
            OSError: the file cannot be written.
            trio.EndOfChannel: the other end sent no file.
        """
        return await receive_file(self.receive, path, progress, max_bytes=max_bytes, fail=self._fail, abort=self.abort)

    # -- the end --------------------------------------------------------------------------------------------

    @checkpointed
    async def aclose(self) -> None:
        """Send the end of file, wait until the other end has everything that was sent, and close.

        What the other end sent and nobody received is dropped, and it cannot send any more.

        Raises:
            TunnelBroken: the tunnel ended before the other end had everything.

        If it is cancelled, or another task is still sending, the tunnel is aborted: the other end gets
        ``TunnelBroken`` unless it had everything.
        """
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        end, machine = self._end, self._end.machine
        try:
            if end.senders:
                self.abort("it was closed while a message was being sent")
            elif machine.ending is None:
                machine.send_eof()
                machine.stop_reading()
                machine.hurry()
                end.settle()
                await end.wait(lambda: machine.sending.is_flushed or machine.ending is not None)
            await trio.lowlevel.checkpoint()
        finally:
            flushed = machine.sending.is_flushed
            ending = machine.ending
            self.abort("it was closed before everything had arrived", flushed=flushed)
        if ending is not None and (ending.lost or not (machine.receiving.has_eof or ending.code == CloseCode.FINISHED)):
            raise self._broken()

    def abort(self, reason: str = "it was given up", *, flushed: bool = False) -> None:
        """Close at once; what the other end does not have yet is lost, and it gets ``TunnelBroken`` with the reason.

        Args:
            reason: text for people at the other end.
            flushed: True if the other end has everything, so that this is no error.
        """
        self._closed = True
        code = CloseCode.FINISHED if flushed else CloseCode.ABORTED
        self._end.machine.close(code, "" if flushed else reason)
        self._end.settle()

    async def __aenter__(self) -> Self:
        """Return the tunnel."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the tunnel; after an error in the block, abort it."""
        if kind is None:
            await self.aclose()
        else:
            self._abort_for(error)

    def _abort_for(self, error: BaseException | None) -> None:
        """Abort it because of an error here."""
        self.abort(self._failure(error))

    def _failure(self, error: BaseException | None) -> str:
        """Return the reason that the other end gets for an error here: whose it is and its name, not its text."""
        who = "the handler" if self._end.machine.asked is None else "the one who opened it"
        if error is not None and is_group(error):  # what was cancelled because of another error says nothing
            error = error.split(trio.Cancelled)[1]
            if error is None:
                return f"{who} was cancelled"
        while error is not None and is_group(error):
            first, *others = error.exceptions
            if others:
                return f"{who} failed: several errors"
            error = first
        if isinstance(error, trio.Cancelled):
            return f"{who} was cancelled"
        return f"{who} failed: {type(error).__name__}"

    @property
    def _stream_piece(self) -> int:
        """Size of what a stream hands over at a time, in bytes: one chunk, unless chunks are small."""
        return min(self.max_message, max(self._end.machine.sending.piece, _STREAM_PIECE))

    @property
    def max_message(self) -> int:
        """Largest message that ``send`` accepts, in bytes: the smaller ``Config.max_payload`` of the two ends."""
        return self._limit

    @property
    def is_closed(self) -> bool:
        """True once this end was closed."""
        return self._closed

    @property
    def is_broken(self) -> bool:
        """True once it has ended: by either end, or because the two cannot reach each other."""
        return self._end.machine.ending is not None

    @property
    def was_finished_by_peer(self) -> bool:
        """True if the other end closed the tunnel on purpose and without an error."""
        ending = self._end.machine.ending
        return ending is not None and ending.by_peer and ending.code is CloseCode.FINISHED

    def statistics(self) -> TunnelStatistics:
        """Return a snapshot of the counters of this end."""
        return self._end.machine.statistics()

    # -- inside ---------------------------------------------------------------------------------------------

    def _is_unsendable(self) -> bool:
        machine = self._end.machine
        return self._closed or machine.ending is not None or machine.state in _HALF_CLOSED

    def _check_sendable(self) -> None:
        """Raise what ``send`` would raise now."""
        machine = self._end.machine
        if self._closed:
            raise trio.ClosedResourceError("this tunnel is closed")
        if machine.ending is not None:
            raise self._broken()
        if machine.state in _HALF_CLOSED:
            raise trio.ClosedResourceError("send_eof was called on this tunnel")

    def _is_unreadable(self) -> bool:
        machine = self._end.machine
        return self._closed or machine.ending is not None or machine.receiving.has_eof

    def _fail(self, reason: str) -> TunnelBroken:
        """Close because of what the other end sent, and return the error to raise."""
        self._end.machine.close(CloseCode.VIOLATION, reason)
        self._end.settle()
        return self._broken()

    def _broken(self) -> TunnelBroken:
        ending = self._end.machine.ending
        assert ending is not None
        reason = ending.reason or "the other end closed it"
        lost = f"; {ending.lost} messages sent had not arrived" if ending.lost else ""
        return TunnelBroken(f"the tunnel to cluster {self.cluster!r} with node {self._end.node} broke: {reason}{lost}")

    async def _pass_turn(self) -> None:
        self._work = 0
        await trio.lowlevel.cancel_shielded_checkpoint()


@final
class TunnelStream(trio.abc.HalfCloseableStream):
    """A stream of bytes through a tunnel, of any length, throttled.  Made by ``Tunnel.as_stream``.

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

    @checkpointed
    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, any number of them.  If it is cancelled, some of them were sent and some not."""
        self._start_sending()
        try:
            await trio.lowlevel.checkpoint()
            self._tunnel._check_sendable()
            most = self._tunnel._stream_piece
            if type(data) is bytes and 0 < len(data) <= most:
                await self._tunnel._send_encoded(data, packed=False)
                return
            with memoryview(data).cast("B") as view:
                for start in range(0, len(view), most):
                    await self._tunnel._send_encoded(bytes(view[start : start + most]), packed=False)
        except TunnelBroken as error:
            raise trio.BrokenResourceError(str(error)) from error
        finally:
            self._sending = False

    @checkpointed
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

    @checkpointed
    @checkpointed
    async def send_eof(self) -> None:
        """Send the end of file; receiving goes on.  If it is cancelled, nothing was sent."""
        self._start_sending()
        try:
            await self._tunnel.send_eof()
        except TunnelBroken as error:
            raise trio.BrokenResourceError(str(error)) from error
        finally:
            self._sending = False

    @checkpointed
    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return some bytes, at most ``max_bytes``; b"" at the end.  If it is cancelled, none are lost."""
        if max_bytes is not None:
            most = as_whole(max_bytes)
            if most is None:
                raise TypeError(f"max_bytes is {shown(max_bytes)}: use a whole number or None")
            if most < 1:
                raise ValueError(f"max_bytes is {shown(max_bytes)}: use a number above 0")
            max_bytes = most
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

    @checkpointed
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
