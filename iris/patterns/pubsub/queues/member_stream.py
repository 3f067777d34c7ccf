"""Member stream: what a worker, or a consumer, exchanges with one member of a bridge, for as long as it wants to.

The members are found, and looked for again now and then.  With each a tunnel is opened and kept: the terms and their
answer first, then reports one way and news the other.  A tunnel that breaks is opened again, after pauses that double.
A worker's stream is a ``MemberLink``, a consumer's a ``MemberReader``.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import trio
from msgspec import Struct

from iris.kernel.errors import IrisError, NoSuchCluster, RemoteProtocolError
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import decode_payload_untrusted, join_payload
from iris.patterns.bridge_protocol import Ask
from iris.patterns.pubsub.queues.bridge_members import TRANSIENT, BridgeMembers, first_error, is_final
from iris.patterns.tunnel import Tunnel

_log: Final = logging.getLogger("iris")

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
_LOOK: Final = 10.0
"""Seconds between two looks for further members of the bridge."""

TEXT: Final = "utf-8"
PACKED: Final = "msgpack"
"""Encodings of the value of a job or an event; bytes have none."""


class ReachAttempts:
    """Pauses between attempts to reach something, and whether it was logged why.

    Args:
        user: who waits for it, in words.
        labels: fields of the log's record.
    """

    def __init__(self, user: str, labels: dict[str, str]) -> None:
        self._user, self._labels = user, labels
        self._logged: type[Exception] | None = None
        self._pause = _FIRST_PAUSE

    def reached(self) -> None:
        """Begin again with the first pause; the next failure is logged."""
        self._logged, self._pause = None, _FIRST_PAUSE

    def failed(self, address: str, error: Exception) -> None:
        """Log once that a member cannot be reached, and why.

        Raises:
            NotAllowed, RemoteError, ConfigError: it is of no use to try again.
        """
        if is_final(error):
            raise error
        if type(error) is not self._logged:
            self._logged = type(error)
            reason = f"is 'iris bridge --name {address}' running?" if isinstance(error, NoSuchCluster) else str(error)
            _log.warning(
                "%s waits for %s: %s", self._user, address, reason,
                extra={**self._labels, "cluster": address, "reason": str(error)},
            )  # fmt: skip

    async def sleep(self) -> None:
        """Wait before the next attempt."""
        await trio.sleep(self._pause)
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)


class MemberStream(ABC):
    """Stream of jobs or events of one member, over one tunnel after the other.

    Args:
        address: cluster at which the member is found.
    """

    def __init__(self, address: str) -> None:
        self.address: Final = address
        self.is_leaving = False
        """True once nothing more is to come."""
        self._wakeup = Wakeup()
        """Woken when there is something to report."""
        self._news = trio.lowlevel.ParkingLot()
        """Tasks that wait for what the member confirms."""
        self._failure: Exception | None = None
        """Error because of which nothing is confirmed any more.  None as long as there is none."""
        self._shards: dict[int, str] = {}
        """Ids of the member's shards by number.  A log that was lost and made anew has another one."""
        self._is_connected = False
        self._terms_sent = 0.0
        """Time at which the terms were sent, in seconds."""

    def end(self, error: Exception) -> None:
        """Raise an error in all tasks that wait, now or later."""
        self._failure = self._failure or error
        self._news.unpark_all()

    def _is_gone(self, shard: str) -> bool:
        """Return whether the log of a shard was made anew: what is known of it means something else by now."""
        return shard != "" and self._shards.get(number_of(shard), shard) != shard

    @abstractmethod
    def give_up(self, heir: Callable[[int], Any]) -> None:  # a stream of the same class, or None
        """Leave what is of shards that have moved to the streams of the members at which they are now."""

    @abstractmethod
    def _begin(self) -> Ask[object]:
        """Forget what a tunnel that is no more has brought; return the terms that the member gets first."""

    @abstractmethod
    def _opened(self, answer: object) -> None:
        """Receive the first answer."""

    @abstractmethod
    def _report(self) -> Struct | None:
        """Return what there is to report. None: nothing."""

    @abstractmethod
    async def _receive(self, message: object, tunnel: Tunnel) -> None:
        """Receive what the member has sent."""

    async def run(self, tunnel: Tunnel, retry: ReachAttempts) -> None:
        """Exchange reports and news through a tunnel until that ends.

        Raises:
            TunnelBroken: it has.
            NotAllowed, RemoteError: the member refuses, and why.
            RemoteProtocolError: it sent something else.
        """
        terms, self._terms_sent = self._begin(), trio.current_time()
        await tunnel._send_message(terms)
        self._opened(await tunnel.receive())
        retry.reached()
        self._is_connected = True
        self._news.unpark_all()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, tunnel)
                with suppress(trio.EndOfChannel):  # in the middle of a large value, as this one leaves
                    async for message in tunnel:
                        await self._receive(message, tunnel)
                nursery.cancel_scope.cancel()
        finally:
            self._is_connected = False
            self._news.unpark_all()

    async def _send(self, tunnel: Tunnel) -> None:
        while not self.is_leaving:
            await self._wakeup.wait()
            report = self._report()
            if report is not None:
                await tunnel._send_message(report)
        await tunnel.send_eof()


S = TypeVar("S", bound=MemberStream)


class MemberStreams(ABC, Generic[S]):
    """The streams of one worker, or consumer, to every member of a bridge.

    Args:
        members: finds them.
        operation: operation of the tunnels.
        user: who it is, for the log: in words, and as fields of a record.
    """

    def __init__(self, members: BridgeMembers, operation: str, user: str, labels: dict[str, str]) -> None:
        self._members = members
        self._operation = operation
        self._user, self._labels = user, labels
        self._streams: dict[str, S] = {}
        self._failure: Exception | None = None

    @abstractmethod
    def _open_stream(self, address: str) -> S:
        """Return the stream to a member that was found."""

    @abstractmethod
    def _wake(self) -> None:
        """Wake every task that iterates."""

    async def _run(self) -> None:
        """Exchange with every member, until cancelled."""
        retry = ReachAttempts(self._user, self._labels)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        for address in await self._members.addresses():
                            if address not in self._streams:
                                self._streams[address] = self._open_stream(address)
                                nursery.start_soon(self._keep, self._streams[address])
                        for stream in self._streams.values():
                            stream.give_up(self._heir)
                        self._looked()
                        retry.reached()
                        await trio.sleep(_LOOK)
                    except TRANSIENT as error:
                        retry.failed(self._members.bridge, error)
                        await retry.sleep()
        except* (IrisError, trio.ClosedResourceError) as group:
            self._end(first_error(group))

    async def _keep(self, stream: S) -> None:
        """Exchange with one member, and again when it comes back."""
        retry = ReachAttempts(self._user, self._labels)
        while not stream.is_leaving:
            try:
                async with self._members.node.open_tunnel(stream.address, operation=self._operation) as tunnel:
                    await stream.run(tunnel, retry)
            except* TRANSIENT as group:
                retry.failed(stream.address, first_error(group))
            self._broken(stream)
            await retry.sleep()

    def _looked(self) -> None:
        """Learn that the members were looked for."""

    def _broken(self, stream: S) -> None:
        """Forget what came through a tunnel that has ended, and that the program does not have yet."""

    def _heir(self, shard: int) -> S | None:
        """Return the stream to the member at which a shard is now."""
        return self._streams.get(self._members.owners.get(shard, ""))

    def _end(self, error: Exception) -> None:
        """Raise an error in all tasks that wait, now or later."""
        self._failure = self._failure or error
        self._wake()
        for stream in self._streams.values():
            stream.end(error)


def number_of(shard: str) -> int:
    """Return the number in a shard's id."""
    return int(shard.partition("@")[0])


def decode_value_untrusted(value: bytes, encoding: str) -> Any:
    """Return the payload that a bridge's log holds as ``value``; raise RemoteProtocolError for other encodings."""
    try:
        if encoding == TEXT:
            return value.decode()
        return decode_payload_untrusted(join_payload(value, packed=True)) if encoding == PACKED else value
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a member of the bridge sent a value that is no UTF-8: {error}") from None


async def receive_value_untrusted(value: bytes | int, encoding: str, tunnel: Tunnel) -> Any:
    """Return the payload of a job or an event.  A large one follows in pieces, as many bytes as ``value`` says.

    Raises:
        RemoteProtocolError: something else follows, or it is encoded otherwise.
    """
    if isinstance(value, int):
        pieces: list[bytes] = []
        missing = value
        while missing > 0:
            piece: object = await tunnel.receive()
            if not isinstance(piece, bytes):
                raise RemoteProtocolError("a member of the bridge sent something else than the value that it announced")
            pieces.append(piece)
            missing -= len(piece)
        value = b"".join(pieces)
    return decode_value_untrusted(value, encoding)
