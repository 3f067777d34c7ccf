"""Leases: exclusive rights for a limited time, granted by a bridge and written to its log before the reply.

One member of a bridge grants them: the one that has shard 0, of which there is one (``ShardClaim``).  A table of its
log has the last token and each holder; a grant is answered when it is on the disk, and on as many copies as needed.
Renewals are kept in memory: when a member starts, each lease of the log counts as renewed just now.
A member whose log needs copies renews nothing before enough of them have said that they still follow it.  So one that
is cut off renews nothing, and what it has granted is over before a promoted copy grants it.

A token is greater than all before it.  A member begins with no less than the date in microseconds: so tokens grow also
where the log was lost with its disk, unless the clock is behind where it was.  The time of a lease is measured by a
monotonic clock.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass
from typing import Final, final

import trio

from iris.kernel.errors import RemoteError
from iris.kernel.names import account_of
from iris.patterns.bridge_protocol import AskLease, LeaseAnswer, ReleaseLease, RenewLease
from iris.patterns.messages import Sender
from iris.patterns.pubsub.subscribe import EventRun
from iris.patterns.state import ELSEWHERE
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.log import LEASES, Transaction
from iris.spark_bridge.protocol import RequestHandlers
from iris.spark_bridge.server.member import BridgeMember

_log: Final = logging.getLogger("iris")

_LAST: Final = b"last"
"""Under which the table has the last token; the names of leases have a slash."""
_MOST: Final = 4096
"""Leases that are held at a time."""
_MOST_OF_CLUSTER: Final = 256
_WAITING: Final = 16
"""Most callers that wait here for a lease: they use places that readers need."""


@final
@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One lease that is held: its token, its length in seconds, and its holder."""

    token: int
    ttl: float
    holder: str
    node: str
    account: str
    """Account in whose quota it is counted."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatistics:
    """Counters of the leases of one member of a bridge."""

    held: int
    """Leases that are held now."""
    granted: int
    released: int
    """Leases that were returned before their time."""
    expired: int
    """Leases whose holder did not renew in time: it was lost, cut off or frozen."""


@final
class LeaseTable:
    """The leases of one bridge.  Sans-IO: the caller writes a grant to disk before it reports it.

    Args:
        last: the last token that was given out.
        held: leases by name, which were held when they were written.
        now: seconds on a clock that nobody sets.
    """

    def __init__(self, last: int, held: Mapping[str, LeaseRecord], now: float) -> None:
        self._last = last
        self._held = dict(held)
        self._until = {name: now + lease.ttl for name, lease in held.items()}
        self._granted = self._released = self._expired = 0
        self._ended: set[str] = set()

    def pop_ended(self) -> set[str]:
        """Return the names of leases that have ended since the last call; this need not be written at once."""
        ended, self._ended = self._ended - self._held.keys(), set()
        return ended

    def keep_ended(self, ended: Collection[str]) -> None:
        """Return these names again: it was not written that they have ended."""
        self._ended.update(ended)

    def acquire(
        self, name: str, holder: str, node: str, ttl: float, now: float, account: str = ""
    ) -> LeaseRecord | float:
        """Grant a lease, or return the seconds after which it is free at the latest.

        A holder that asks again gets the same token: its first answer may have been lost.
        """
        self._expire(now)
        held = self._held.get(name)
        if held is not None and held.holder != holder:
            return self._until[name] - now
        if held is None:
            self._last += 1
            self._granted += 1
            held = self._held[name] = LeaseRecord(self._last, ttl, holder, node, account)
        self._until[name] = now + held.ttl
        return held

    def renew(self, name: str, holder: str, now: float) -> bool:
        """Prolong a lease; False if the caller does not have it any more."""
        self._expire(now)
        held = self._held.get(name)
        if held is None or held.holder != holder:
            return False
        self._until[name] = now + held.ttl
        return True

    def release(self, name: str, holder: str) -> bool:
        """End a lease before its time; False if the caller did not have it."""
        held = self._held.get(name)
        if held is None or held.holder != holder:
            return False
        self._end(name)
        self._released += 1
        return True

    def count(self, account: str, now: float) -> tuple[int, int]:
        """Return how many leases are held, and how many of these are on an account."""
        self._expire(now)
        return len(self._held), sum(lease.account == account for lease in self._held.values())

    def is_held(self, name: str, holder: str = "") -> bool:
        """Return whether a holder, or any node, has a lease, as of the last call with a time."""
        held = self._held.get(name)
        return held is not None and holder in ("", held.holder)

    def statistics(self, now: float) -> LeaseStatistics:
        """Return a snapshot of the counters."""
        self._expire(now)
        return LeaseStatistics(
            held=len(self._held), granted=self._granted, released=self._released, expired=self._expired
        )

    def _expire(self, now: float) -> None:
        for name in [name for name, until in self._until.items() if until <= now]:
            self._end(name)
            self._expired += 1

    def _end(self, name: str) -> None:
        del self._held[name], self._until[name]
        self._ended.add(name)


@final
class Leases:
    """The leases that one member of a bridge grants, or knows where to ask for.

    Args:
        member: has the log.
        address: the cluster of this member alone.
    """

    def __init__(self, member: BridgeMember, *, address: str) -> None:
        self._member = member
        self._address = address
        with member.store.read_transaction() as view:
            self._table = read_leases(view, trio.current_time(), member.now())
        self._waiting = 0
        self._news = trio.lowlevel.ParkingLot()

    def requests(self) -> RequestHandlers:
        """Return what answers the members of a cluster, which is known to be theirs."""
        return {AskLease: self._lease, RenewLease: self._renew, ReleaseLease: self._release}

    def report(self) -> LeaseStatistics:
        """Return the counters."""
        return self._table.statistics(trio.current_time())

    async def _lease(self, sender: Sender, asked: AskLease) -> LeaseAnswer:
        granting = self._member.known.get(0, "")
        if granting == "":
            raise RemoteError("no_shard_0", "no member of this bridge is known to have shard 0: that one grants leases")
        if granting != self._address:
            await trio.lowlevel.checkpoint()
            return LeaseAnswer(elsewhere=granting)
        name, holder, ttl = _name(asked), asked.holder.hex(), asked.ttl
        granted = await self._grant(name, holder, sender, ttl)
        if not isinstance(granted, LeaseRecord) and asked.wait and self._waiting < _WAITING:
            self._waiting += 1
            try:
                granted = await self._wait(name, holder, sender, ttl, trio.current_time() + asked.wait, granted)
            finally:
                self._waiting -= 1
        if isinstance(granted, LeaseRecord):
            return LeaseAnswer(token=granted.token, at=self._address)
        return LeaseAnswer(busy=granted)

    async def _wait(
        self, name: str, holder: str, sender: Sender, ttl: float, deadline: float, busy: float
    ) -> LeaseRecord | float:
        while (now := trio.current_time()) < deadline:
            with trio.move_on_at(min(deadline, now + busy)):
                await self._news.park()
            granted = await self._grant(name, holder, sender, ttl)
            if isinstance(granted, LeaseRecord):
                return granted
            busy = granted
        return busy

    async def _grant(self, name: str, holder: str, sender: Sender, ttl: float) -> LeaseRecord | float:
        """Grant a lease and write it down, or return the seconds after which it is free at the latest.

        Raises:
            RemoteError: there are too many, or it cannot be written.
        """
        now = trio.current_time()
        # A node may be a member of many clusters, and name each of them: what counts is in its certificate.
        account = account_of(sender.cluster)
        held, own = self._table.count(account, now)
        is_new = not self._table.is_held(name)
        if is_new and (held >= _MOST or own >= _MOST_OF_CLUSTER):
            raise RemoteError("too_many_leases", f"{held} leases are held, {own} by this cluster")
        granted = self._table.acquire(name, holder, sender.node, ttl, now, account)
        if not isinstance(granted, LeaseRecord):
            return granted
        ended = self._table.pop_ended()

        def write(view: Transaction, _runs: list[EventRun]) -> None:
            write_lease(view, name, granted, ended)

        try:
            await self._member.write(write)  # one that was granted before, too: its first answer may wait for this
        except BaseException as error:
            self._table.keep_ended(ended)
            if not isinstance(error, StoreFull):
                raise
            if is_new:  # else it may have got the grant already
                self._table.release(name, holder)
            raise RemoteError("not_stored", str(error)) from None
        if not self._table.is_held(name, holder):
            return 0.0  # it was given back meanwhile, or there was no room for it when it was asked for first
        _log.info(
            "lease %s is held by node %s, token %d",
            name,
            sender.node,
            granted.token,
            extra={"cluster": name.rpartition("/")[0], "peer": sender.node},
        )
        return granted

    def _check_granting(self) -> None:
        """Refuse to answer for leases of another member, which may have had this one's name before.

        Raises:
            RemoteError: this one grants none; the message is where the other one is, if that is known.
        """
        granting = self._member.known.get(0, "")
        if granting != self._address:
            raise RemoteError(ELSEWHERE, granting)

    async def _renew(self, _sender: Sender, asked: RenewLease) -> bool:
        await trio.lowlevel.checkpoint()
        self._check_granting()
        # A primary that was cut off from its copies may have a successor, which gives each lease its time from when it
        # was promoted.  That was not before the holder asked, if enough copies still follow this one: so the holder's
        # time, which begins when it asks, is over first.
        await self._member.copies.wait_followed()
        return self._table.renew(_name(asked), asked.holder.hex(), trio.current_time())

    async def _release(self, _sender: Sender, asked: ReleaseLease) -> bool:
        await trio.lowlevel.checkpoint()
        self._check_granting()
        had = self._table.release(_name(asked), asked.holder.hex())
        self._news.unpark_all()
        return had


def _name(asked: AskLease | RenewLease | ReleaseLease) -> str:
    """Return the whole name of a lease, which begins with the cluster that it is of."""
    return f"{asked.cluster}/{asked.name}"


def read_leases(view: Transaction, now: float, date: int) -> LeaseTable:
    """Return the leases that a log has.

    Args:
        view: view of the log's index.
        now: seconds on a clock that nobody sets.
        date: microseconds since 1970.
    """
    records = {name: json.loads(value) for name, value in view.items(LEASES)}
    last = records.pop(_LAST, 0)
    held = {name.decode(): LeaseRecord(*lease) for name, lease in records.items()}
    return LeaseTable(max(last, date), held, now)


def write_lease(view: Transaction, name: str, lease: LeaseRecord, ended: Collection[str]) -> None:
    """Write the holder of a lease, and that others have ended."""
    for other in ended:
        view.delete(LEASES, other.encode())
    view.put(LEASES, name.encode(), json.dumps(astuple(lease)).encode())
    last = view.get(LEASES, _LAST) or b"0"
    view.put(LEASES, _LAST, json.dumps(max(lease.token, json.loads(last))).encode())
