"""Leases: who alone may do something for a while, granted by a bridge and written to its disk before it says so.

========= ============================================== ======================================================
operation payload                                        reply
========= ============================================== ======================================================
lease     {name: text, cluster: whose lease it is,       {token: number, at: cluster}, where it is renewed and
          holder: 16 bytes, ttl: s, wait: s}             released; {busy: seconds, at most, until it is free}; or
                                                         {elsewhere: cluster}, where it is granted
renew     {name, cluster, holder, ttl}                   whether the caller still has it
release   {name, cluster, holder}                        whether the caller had it
========= ============================================== ======================================================

One member of a bridge grants them: the one that has shard 0, of which there is one (``ShardClaim``).  Its file
``leases`` has the last token and who holds what; it is replaced whole and synced before a lease is granted.  Renewals
are kept in memory: a member that starts takes each lease in its file for one that was renewed just now.

A token is greater than all before it.  A member begins with no less than the date in microseconds: so tokens grow also
where the file was lost with its disk, unless the clock is behind where it was.  The time of a lease is measured by a
clock that nobody sets.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast, final

import trio

from iris.kernel.errors import ConfigError, RemoteError
from iris.kernel.names import is_name
from iris.node.node import Node
from iris.patterns.messages import Request, Sender
from iris.patterns.service import Service
from iris.patterns.state import MAX_TTL, MIN_TTL
from iris.security.files import write_private
from iris.spark_bridge.server.permissions import speaks_for

_log: Final = logging.getLogger("iris")

_FILE: Final = "leases"
_WHAT: Final = "the leases of a bridge"
_HOLDER: Final = 16
_MOST: Final = 4096
"""Leases that are held at a time: a file of 600 KB at most, which each grant writes."""
_MOST_OF_CLUSTER: Final = 256
_WAITING: Final = 16
"""Callers that wait here for a lease: they take places from those that read."""
_MAX_WAIT: Final = 5.0


@final
@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One lease that is held: its token, its length in seconds, and who has it."""

    token: int
    ttl: float
    holder: str
    node: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatistics:
    """Counters of the leases of one member of a bridge."""

    held: int
    """Leases that somebody has now."""
    granted: int
    released: int
    """Those that were given back before their time."""
    expired: int
    """Those whose holder was not heard of in time: it was lost, cut off or frozen."""


@final
class LeaseTable:
    """The leases of one bridge.  Sans-IO: the caller writes ``record()`` to disk before it tells of a grant.

    Args:
        last: the last token that was given out.
        held: leases by name, which were held when this table was written.
        now: seconds on a clock that nobody sets.
    """

    def __init__(self, last: int, held: Mapping[str, LeaseRecord], now: float) -> None:
        self._last = last
        self._held = dict(held)
        self._until = {name: now + lease.ttl for name, lease in held.items()}
        self._granted = self._released = self._expired = 0

    @property
    def last(self) -> int:
        """The last token that was given out."""
        return self._last

    def acquire(self, name: str, holder: str, node: str, ttl: float, now: float) -> LeaseRecord | float:
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
            held = self._held[name] = LeaseRecord(self._last, ttl, holder, node)
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
        del self._held[name], self._until[name]
        self._released += 1
        return True

    def count(self, prefix: str, now: float) -> tuple[int, int]:
        """Return how many leases are held, and how many of these have names that begin so."""
        self._expire(now)
        return len(self._held), sum(name.startswith(prefix) for name in self._held)

    def is_held(self, name: str) -> bool:
        """Tell whether somebody has a lease, as of the last call with a time."""
        return name in self._held

    def statistics(self, now: float) -> LeaseStatistics:
        """Return a snapshot of the counters."""
        self._expire(now)
        return LeaseStatistics(
            held=len(self._held), granted=self._granted, released=self._released, expired=self._expired
        )

    def record(self) -> dict[str, Any]:
        """Return what has to be on disk."""
        held = {name: [lease.token, lease.ttl, lease.holder, lease.node] for name, lease in self._held.items()}
        return {"last": self._last, "held": held}

    def _expire(self, now: float) -> None:
        for name in [name for name, until in self._until.items() if until <= now]:
            del self._held[name], self._until[name]
            self._expired += 1


@final
class Leases:
    """The leases that one member of a bridge grants, or knows where to ask for.  Made by ``open_leases``."""

    def __init__(
        self,
        node: Node,
        path: Path,
        table: LeaseTable,
        address: str,
        grants_at: Callable[[], str],
    ) -> None:
        self._node = node
        self._path = path
        self._table = table
        self._address = address
        self._grants_at = grants_at
        self._writing = trio.Lock()
        self._waiting = 0
        self._news = trio.lowlevel.ParkingLot()

    def serve(self, service: Service) -> Service:
        """Add the operations to a service of the bridge, and return that."""
        service.request("lease")(self._lease)
        service.request("renew")(self._renew)
        service.request("release")(self._release)
        return service

    def report(self) -> LeaseStatistics:
        """Return the counters."""
        return self._table.statistics(trio.current_time())

    async def _lease(self, request: Request) -> dict[str, Any]:
        granting = self._grants_at()
        if granting == "":
            raise RemoteError("no_shard_0", "no member of this bridge is known to have shard 0: that one grants leases")
        if granting != self._address:
            await trio.lowlevel.checkpoint()
            return {"elsewhere": granting}
        fields = _fields(request.payload)
        name, holder = self._named(request.sender, fields), _holder(fields)
        ttl, wait = _seconds(fields, "ttl", MIN_TTL, MAX_TTL), _seconds(fields, "wait", 0.0, _MAX_WAIT)
        granted = await self._grant(name, holder, request.sender, ttl)
        if not isinstance(granted, LeaseRecord) and wait and self._waiting < _WAITING:
            self._waiting += 1
            try:
                granted = await self._wait(name, holder, request.sender, ttl, trio.current_time() + wait, granted)
            finally:
                self._waiting -= 1
        if isinstance(granted, LeaseRecord):
            return {"token": granted.token, "at": self._address}
        return {"busy": granted}

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
        async with self._writing:  # one at a time: what is on disk is never older than what was told
            now = trio.current_time()
            held, of_cluster = self._table.count(name.rpartition("/")[0] + "/", now)
            if not self._table.is_held(name) and (held >= _MOST or of_cluster >= _MOST_OF_CLUSTER):
                raise RemoteError("too_many_leases", f"{held} leases are held, {of_cluster} by this cluster")
            last = self._table.last
            granted = self._table.acquire(name, holder, sender.node, ttl, now)
            if not isinstance(granted, LeaseRecord) or granted.token <= last:
                return granted
            try:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(partial(save_leases, self._path, self._table.record()))
            except ConfigError as error:
                self._table.release(name, holder)
                raise RemoteError("not_stored", str(error)) from None
        _log.info(
            "lease %s is held by node %s, token %d",
            name,
            sender.node,
            granted.token,
            extra={"cluster": name.rpartition("/")[0], "peer": sender.node},
        )
        return granted

    async def _renew(self, request: Request) -> bool:
        fields = _fields(request.payload)
        name, holder = self._named(request.sender, fields), _holder(fields)
        await trio.lowlevel.checkpoint()
        return self._table.renew(name, holder, trio.current_time())

    async def _release(self, request: Request) -> bool:
        fields = _fields(request.payload)
        name, holder = self._named(request.sender, fields), _holder(fields)
        await trio.lowlevel.checkpoint()
        had = self._table.release(name, holder)
        self._news.unpark_all()
        return had

    def _named(self, sender: Sender, fields: Mapping[str, object]) -> str:
        """Return the whole name of a lease, which begins with the cluster that it is of.

        Raises:
            RemoteError: the sender has nothing to do with that cluster.
        """
        cluster, name = _cluster(fields), _name(fields)
        if not speaks_for(self._node, sender.node, sender.cluster, cluster):
            raise RemoteError(
                "NotAllowed",
                f"node {sender.node} of cluster {sender.cluster!r} asks for a lease of {cluster!r}, and is no member",
            )
        return f"{cluster}/{name}"


async def open_leases(
    node: Node, directory: Path, *, address: str, grants_at: Callable[[], str], wall_clock: Callable[[], float]
) -> Leases:
    """Return the leases of a member of a bridge.

    Args:
        node: of the member.
        directory: of its log.
        address: the cluster of this member alone.
        grants_at: returns that of the member that grants leases; empty if none is known.
        wall_clock: seconds since 1970.

    Raises:
        ConfigError: the file cannot be read, or is damaged.
    """
    path = directory / _FILE
    record = await trio.to_thread.run_sync(load_leases, path)
    return Leases(node, path, table_of(record, trio.current_time(), wall_clock()), address, grants_at)


def table_of(record: Mapping[str, Any], now: float, date: float) -> LeaseTable:
    """Return the table of what was on disk."""
    held = {name: LeaseRecord(*lease) for name, lease in record["held"].items()}
    return LeaseTable(max(record["last"], int(date * 1_000_000)), held, now)


def save_leases(path: Path, record: Mapping[str, Any]) -> None:
    """Write leases, whole or not at all, and sync them.

    Raises:
        ConfigError: they cannot be written.
    """
    data = json.dumps(record).encode()
    write_private(path, hashlib.blake2b(data, digest_size=16).hexdigest().encode() + b"\n" + data, _WHAT)


def load_leases(path: Path) -> dict[str, Any]:
    """Read leases; none if there is no file.

    Raises:
        ConfigError: it cannot be read, or is damaged.
    """
    try:
        digest, _, data = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return {"last": 0, "held": {}}
    except OSError as error:
        raise ConfigError(f"{_WHAT} {path}: {error.strerror}") from None
    if hashlib.blake2b(data, digest_size=16).hexdigest().encode() != digest:
        raise ConfigError(
            f"{_WHAT} {path} is damaged: wait until all leases are over, then move it away; tokens go on from the date"
        )
    record: dict[str, Any] = json.loads(data)
    return record


# -- payloads of peers -----------------------------------------------------------------------------------------


def _fields(payload: object) -> Mapping[str, object]:
    if not isinstance(payload, dict):
        raise RemoteError("bad_request", f"the payload is a {type(payload).__name__}: use a dict")
    return cast("dict[str, object]", payload)


def _name(fields: Mapping[str, object]) -> str:
    value = fields.get("name")
    if not is_name(value):
        raise RemoteError("bad_request", f"name is {value!r:.100}: use a name")
    return cast("str", value)


def _cluster(fields: Mapping[str, object]) -> str:
    """Return a cluster, of this realm or as ``REALM/CLUSTER``: a lease's own name has no such beginning."""
    value = fields.get("cluster")
    if not isinstance(value, str) or not all(map(is_name, value.rsplit("/", 1))):
        raise RemoteError("bad_request", f"cluster is {value!r:.100}: use a name")
    return value


def _holder(fields: Mapping[str, object]) -> str:
    value = fields.get("holder")
    if not isinstance(value, bytes) or len(value) != _HOLDER:
        raise RemoteError("bad_request", f"the holder is {value!r:.100}: use {_HOLDER} bytes")
    return value.hex()


def _seconds(fields: Mapping[str, object], name: str, least: float, most: float) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise RemoteError("bad_request", f"{name} is {value!r}: use {least:g} to {most:g} seconds")
    return float(value)
