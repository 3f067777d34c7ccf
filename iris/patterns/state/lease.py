"""Lease: the right to do something alone, for as long as its holder renews it at a bridge.

The holder measures its time from before it asked, on a clock that nobody sets, and the bridge from when it was asked:
so the holder's time is over first.  What a lease cannot do is stop a process that was frozen while it had one, and goes
on after it: that is what the token is for.  A resource that refuses tokens smaller than one it has seen takes nothing
from a former holder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random
from typing import Final, final

import trio

from iris.kernel.errors import (
    DeliveryError,
    LeaseLost,
    NoSuchCluster,
    NotAllowed,
    RemoteError,
    RemoteProtocolError,
    RequestTimeout,
)
from iris.kernel.names import is_name
from iris.kernel.tasks import open_background, protected_context
from iris.patterns.bridge_protocol import Ask, AskLease, Bridges, LeaseAnswer, ReleaseLease, RenewLease

ELSEWHERE: Final = "elsewhere"
"""Code of the error of a bridge's member that is asked for leases which another one grants; the message is where."""

_WAIT: Final = 5.0
"""Seconds that a bridge may wait for a lease before it answers."""
_ASK_AGAIN: Final = 0.5
"""Seconds between two questions to a bridge that did not wait."""
_RELEASE: Final = 1.0
_HOPS: Final = 3
"""Questions until the member that grants leases is found: by its former name, by that of the bridge, by its own."""


@final
class Lease:
    """The right to do something alone.  Made by ``Bridge.lease``; over when the block is cancelled.

    Attributes:
        name: name of what it is for.
        token: number greater than those of all earlier holders.  Send it along with what only the holder may do: a
            resource that refuses tokens smaller than the greatest it has seen is safe from former holders.
    """

    def __init__(self, name: str, token: int, ttl: float, scope: trio.CancelScope) -> None:
        self.name: Final = name
        self.token: Final = token
        self._ttl = ttl
        self._scope = scope

    def __repr__(self) -> str:
        return f"<Lease {self.name!r}, token {self.token}, {self.left:.1f} s left>"

    @property
    def left(self) -> float:
        """Seconds for which the lease is certain if it cannot be renewed; 0 when it is lost."""
        return 0.0 if self._scope.cancel_called else max(0.0, self._scope.deadline - trio.current_time())

    def _renewed(self, asked: float) -> None:
        self._scope.deadline = asked + self._ttl

    def _lose(self) -> None:
        self._scope.cancel()


@final
class _Granting:
    """The member of a bridge that grants leases.  It may get another name, and another member its own.

    Args:
        bridges: asks it.
        bridge: cluster of the bridge.
        at: cluster of this member alone.
    """

    def __init__(self, bridges: Bridges, bridge: str, at: str) -> None:
        self._bridges, self._bridge, self._at = bridges, bridge, at

    async def ask(self, request: Ask[bool], timeout: float) -> bool:
        """Ask it; after an error another one is asked the next time, if this one has another name by now.

        Raises:
            DeliveryError, RemoteProtocolError: see ``Bridges.ask``.
        """
        try:
            return await self._bridges.ask(self._at, request, timeout)
        except RemoteError as error:
            if error.code == ELSEWHERE:
                self._at = error.message if is_name(error.message) else self._bridge
            raise
        except DeliveryError:
            self._at = self._bridge
            raise


@protected_context
async def open_lease(
    bridges: Bridges, bridge: str, cluster: str, name: str, ttl: float, timeout: float, random: Random
) -> AsyncIterator[Lease]:
    """Hold a lease; see ``Bridge.lease``.

    Args:
        bridges: asks the bridge.
        bridge: cluster of the bridge.
        cluster: cluster that the lease belongs to.
        name: name of the lease.
        ttl: seconds for which it is granted at a time.
        timeout: seconds to wait for it.
        random: source of the jitter that spreads out the nodes that ask.
    """
    release = ReleaseLease(name=name, cluster=cluster, holder=bridges.entropy(16))
    deadline = trio.current_time() + timeout
    try:
        at, token, asked = await _acquire(bridges, bridge, release, ttl, deadline, random)
    except TimeoutError:
        raise RequestTimeout(f"the lease {name!r} of cluster {cluster!r} was not free within {timeout:g} s") from None
    granting = _Granting(bridges, bridge, at)
    scope = trio.CancelScope(deadline=asked + ttl)
    lease = Lease(name, token, ttl, scope)
    expired = False
    try:
        async with open_background() as nursery:
            nursery.start_soon(_keep, granting, release, lease, ttl, asked)
            with scope:
                yield lease
            expired = lease.left == 0
    finally:
        await _release(granting, release)
    if expired:
        raise LeaseLost(
            f"the lease {name!r} of cluster {cluster!r} was lost: the bridge {bridge!r} could not be told for {ttl:g} "
            "s that it is still needed, or has given it to another node"
        )


async def _acquire(
    bridges: Bridges, bridge: str, release: ReleaseLease, ttl: float, deadline: float, random: Random
) -> tuple[str, int, float]:
    """Wait for a lease; return the cluster that renews it, the token, and when this node asked.

    Raises:
        TimeoutError: it was not free by then.
        NoSuchCluster: there is no bridge.
        NotAllowed: this node may not have it.
    """
    granting = bridge
    try:
        while True:
            asked = trio.current_time()
            wait = max(0.0, min(_WAIT, deadline - asked, ttl / 2))  # so long is what the bridge measures less
            try:
                wanted = AskLease(name=release.name, cluster=release.cluster, holder=release.holder, ttl=ttl, wait=wait)
                answer = await _asked(bridges, granting, wanted, wait + 1.0)
            except NoSuchCluster:
                if granting == bridge:
                    raise
                answer = None
            if answer is None:
                granting, answer = bridge, LeaseAnswer()  # that member may have another name by now, or another grants
            if answer.token is not None and answer.at is not None and trio.current_time() < asked + ttl:
                return answer.at, answer.token, asked
            if answer.elsewhere is not None:
                found = granting == bridge
                granting = answer.elsewhere if found else bridge  # else it was there a moment ago
                if found:
                    continue
            if (now := trio.current_time()) >= deadline:
                raise TimeoutError
            await trio.sleep(max(0.0, _ASK_AGAIN * random.uniform(0.5, 1) - (now - asked)))
    except BaseException:
        await _release(_Granting(bridges, bridge, granting), release)  # it may have been granted just now
        raise


async def _asked(bridges: Bridges, granting: str, wanted: AskLease, timeout: float) -> LeaseAnswer | None:
    """Ask for a lease; return the answer, None if there is none now.

    Raises:
        NoSuchCluster: there is no bridge.
        NotAllowed: this node may not have it.
        RemoteError: the bridge cannot grant it.
    """
    try:
        return await bridges.ask(granting, wanted, timeout)
    except NoSuchCluster:
        raise NoSuchCluster(
            f"a lease needs a bridge, which keeps on its disk who has it, and no node serves {granting!r}: start one "
            "('iris bridge'), or name another: node.bridge(NAME)"
        ) from None
    except RemoteError as error:
        if error.code == "NotAllowed":
            raise NotAllowed(error.message) from None
        if error.code == "no_such_operation":
            raise NoSuchCluster(f"the cluster {granting!r} is no bridge that grants leases: {error.message}") from None
        raise
    except NotAllowed:
        raise
    except (DeliveryError, RemoteProtocolError):
        return None


async def _keep(granting: _Granting, release: ReleaseLease, lease: Lease, ttl: float, asked: float) -> None:
    """Renew a lease until it is lost."""
    renew = RenewLease(name=release.name, cluster=release.cluster, holder=release.holder)
    pause = max(0.0, asked + ttl / 3 - trio.current_time())
    while True:
        await trio.sleep(pause)
        asked = trio.current_time()
        try:
            kept = await granting.ask(renew, ttl / 3)
        except (DeliveryError, RemoteProtocolError):
            pause = ttl / 20
            continue
        if not kept:
            return lease._lose()
        lease._renewed(asked)
        pause = ttl / 3


async def _release(granting: _Granting, release: ReleaseLease) -> None:
    with trio.move_on_after(_RELEASE) as last:
        last.shield = True
        for _ in range(_HOPS):
            with suppress(DeliveryError, RemoteProtocolError):
                await granting.ask(release, _RELEASE)
                return


__all__ = ("ELSEWHERE", "Lease", "open_lease")
