"""Admission control: limits on strangers, before anybody is authenticated.  Sans-IO.

Use, for each first handshake frame and each connection that others open::

    if not admission.may_begin(address, now):  # too many from there: drop the frame
        return
    if not admission.is_fresh(ephemeral):  # so often no honest node sends the same frame: drop it
        return
    hello = responder.receive_first_untrusted(frame)  # the sender knows the gate secret
    admission.remember(ephemeral)
    for index in admission.open(responder.index, address, now):
        ...  # forget this other handshake: it was the oldest, and there are too many
    for index in admission.dial_back(responder.index, address, now):  # if there is no connection to answer by
        ...  # forget this other handshake, likewise: it is still being dialled
    admission.dialled(responder.index)  # a connection was made, or could not be
    admission.close(responder.index)  # when it is finished, has failed, or has taken too long

    for other in connections.open(connection, address, now):
        ...  # close this other connection, likewise
    connections.authenticate(connection)  # a genuine frame came through it: it is no stranger's any more
    if connections.refuse(connection):
        ...  # a frame that came through it was refused, and no genuine one before: close it
    connections.close(connection)  # it is gone

and at ``deadline``, ``connections.expire(now)`` returns the connections that have taken too long and are to be closed.

Where there are too many, the newest evicts the oldest: see ``iris.kernel.slots``.

An address is what strangers cannot choose freely: ``address_key`` makes it of an IP address.  None stands for peers
that the operating system vouches for (ipc sockets in a directory of this user): they share only the limit in all.

Replays are bounded.  A stranger who has listened to the network can send first frames again, and each is good for a
dial to where its sender once was.  So each frame is taken as often as honest nodes send one and no more, for as long as
it is remembered.  Dials on behalf of strangers have slots of their own, far fewer than a transport can make dials:
neither this node's own dials nor those for honest strangers wait behind addresses where nobody is.

The rate of an address counts handshakes that were begun, which cost a node half a millisecond.  Junk is not counted
there, or one who knows nothing could keep out the honest ones behind his address; it costs 15 us, and its connection.

Every table here is bounded.  What is refused is counted by reason.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable
from typing import Final, Generic, TypeVar, final

from iris.kernel.config import Config
from iris.kernel.slots import SlotTable
from iris.kernel.token_bucket import TokenBucket

MAX_ADDRESSES: Final = 4096
"""Addresses whose rate is remembered, 200 bytes each.  Beyond it the one seen longest ago is forgotten, which gives it
a fresh burst: with so many addresses an attacker gains nothing from that."""

FIRST_FRAMES: Final = 3
"""Limit on the repeats of one first frame: an honest node sends it so often, since it cannot know which of them were
dropped.  A replay that comes before the last of these does no harm, for its answer goes to that node all the same."""

MAX_EPHEMERALS: Final = 8192
"""First frames that are remembered, 200 bytes each.  Beyond it the one that was seen longest ago is forgotten."""

K = TypeVar("K", bound=Hashable)


@final
class Admission:
    """Admission control of handshakes.  Limits come from ``Config``.

    Args:
        refusals: the counter of first frames and handshakes that are refused or dropped, by reason.
    """

    __slots__ = ("_buckets", "_burst", "_dials", "_ephemerals", "_handshakes", "_rate", "_refusals")

    def __init__(self, config: Config, refusals: Counter[str]) -> None:
        self._rate = config.handshake_rate
        self._burst = config.handshake_burst
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._handshakes: SlotTable[int] = SlotTable(
            limit=config.half_open_handshakes,
            per_address=config.half_open_per_address,
            timeout=config.handshake_timeout,
        )
        self._dials: SlotTable[int] = SlotTable(
            limit=config.dial_backs,
            per_address=max(1, config.half_open_per_address // 2),
            timeout=config.handshake_timeout,
        )
        self._ephemerals: OrderedDict[bytes, int] = OrderedDict()
        self._refusals = refusals

    @property
    def half_open(self) -> int:
        """Handshakes in progress."""
        return len(self._handshakes)

    @property
    def dialling(self) -> int:
        """Handshakes for which a connection is being made."""
        return len(self._dials)

    def is_fresh(self, ephemeral: bytes) -> bool:
        """Return whether a first frame with this ephemeral key was taken less often than honest nodes send one.

        It needs no decryption: only keys out of genuine frames are remembered, so what has one of them is a replay, or
        junk.
        """
        # Before any decryption: a recorded frame passes the gate, so a replay has to be refused before it costs that.
        taken = self._ephemerals.get(ephemeral, 0)
        if taken < FIRST_FRAMES:
            return True
        self._ephemerals.move_to_end(ephemeral)
        self._refusals["first frame that was sent too often"] += 1
        return False

    def remember(self, ephemeral: bytes) -> None:
        """Count a genuine first frame by its ephemeral key."""
        self._ephemerals[ephemeral] = self._ephemerals.pop(ephemeral, 0) + 1
        if len(self._ephemerals) > MAX_EPHEMERALS:
            self._ephemerals.popitem(last=False)

    def may_begin(self, address: str | None, now: float) -> bool:
        """Return whether a first frame from ``address`` may be looked at."""
        # Only looked at, not spent: it is genuine frames that are charged (``open``, ``charge``).  Were junk charged,
        # one host behind a NAT could lock out its honest neighbours.
        if address is None or self._bucket(address, now).level(now) >= 1.0:
            return True
        self._refusals["handshake rate of one address"] += 1
        return False

    def _bucket(self, address: str, now: float) -> TokenBucket:
        bucket = self._buckets.get(address)
        if bucket is None:
            if len(self._buckets) >= MAX_ADDRESSES:
                self._buckets.popitem(last=False)
            bucket = self._buckets[address] = TokenBucket(self._burst, self._rate, now)
        else:
            self._buckets.move_to_end(address)
        return bucket

    def open(self, index: int, address: str | None, now: float) -> list[int]:
        """Count a handshake as in progress, and against the rate of its address.

        Returns:
            Those, older ones, that are to be forgotten for it.
        """
        # From here on the handshake holds memory.  The oldest gives way rather than the newest being refused: an
        # attacker that filled all slots once would otherwise hold them for a whole timeout.
        self.charge(address, now)
        dropped = self._handshakes.allocate(index, address, now)
        if dropped:
            self._refusals["too many half-open handshakes"] += len(dropped)
        return dropped

    def charge(self, address: str | None, now: float) -> None:
        """Count a genuine first frame against the rate of its address only: nothing more will come of it."""
        if address is not None:
            bucket = self._bucket(address, now)
            bucket.level(now)  # what comes from the time before is not to pay for it
            bucket.owe(1.0)

    def close(self, index: int) -> None:
        """Count a handshake as over, whatever its outcome.  One that is not in progress is passed over."""
        self._handshakes.leave(index)
        self._dials.leave(index)

    def dial_back(self, index: int, address: str | None, now: float) -> list[int]:
        """Count a dial on behalf of a stranger as in progress.

        Returns:
            Those handshakes, with older dials, that are to be forgotten for it.
        """
        dropped = self._dials.allocate(index, address, now)
        if dropped:
            self._refusals["too many dials for strangers"] += len(dropped)
        return dropped

    def dialled(self, index: int) -> None:
        """Count a dial as over, whatever its outcome.  One that is not in progress is passed over."""
        self._dials.leave(index)


@final
class UnauthenticatedConnections(Generic[K]):
    """Connections that others have opened and that have not shown a genuine frame yet.

    One that is silent, or stands still inside its first frame, is closed after ``Config.handshake_timeout``, or
    earlier if its slot is needed; one that sends junk is closed for it.  One address has three quarters of the
    slots that it has for handshakes, because the network may hold a whole frame for each.

    Args:
        refusals: the counter of connections that are to be closed, by reason.

    Attributes:
        waiting: the connections; not a copy, so that it costs little to see with each frame whether there are any.
    """

    __slots__ = ("_refusals", "_unauthenticated", "waiting")

    def __init__(self, config: Config, refusals: Counter[str]) -> None:
        self._unauthenticated: SlotTable[K] = SlotTable(
            limit=config.half_open_handshakes,
            per_address=max(1, config.half_open_per_address * 3 // 4),
            timeout=config.handshake_timeout,
        )
        self._refusals = refusals
        self.waiting: Final[Collection[K]] = self._unauthenticated.keys()

    def open(self, connection: K, address: str | None, now: float) -> list[K]:
        """Note a connection; return those, older ones, that are to be closed for it."""
        losers = self._unauthenticated.allocate(connection, address, now)
        if losers:
            self._refusals["too many connections"] += len(losers)
        return losers

    def authenticate(self, connection: K) -> None:
        """A genuine frame came through ``connection``: it is under no limit any more."""
        self._unauthenticated.leave(connection)

    def refuse(self, connection: K) -> bool:
        """Return whether ``connection`` is to be closed, because a frame that came through it was refused."""
        junk = self._unauthenticated.leave(connection)
        if junk:
            self._refusals["junk from a stranger"] += 1
        return junk

    def close(self, connection: K) -> None:
        """The connection is gone.  May be called for any, and twice."""
        self._unauthenticated.leave(connection)

    @property
    def deadline(self) -> float:
        """The time at which to call ``expire``; infinity if there are no strangers."""
        return self._unauthenticated.deadline

    def expire(self, now: float) -> list[K]:
        """Return the connections that have taken too long and are to be closed."""
        expired = self._unauthenticated.expire(now)
        if expired:
            self._refusals["no genuine frame in time"] += len(expired)
        return expired
