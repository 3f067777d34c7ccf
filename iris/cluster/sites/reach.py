"""Reach: a call that first links the members that it is for, because they are not linked before they are asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar

from iris.kernel.names import NodeId

T = TypeVar("T", covariant=True)


class SiteReach(Protocol[T]):
    """Opens a call within a time, once the member is linked."""

    def __call__(self, *, timeout: float) -> AbstractAsyncContextManager[T]:
        """Open it."""
        ...


class ReachOfAll(Protocol[T]):
    """Opens a call to all members of a cluster within a time, once those are linked that can be."""

    def __call__(self, *, timeout: float, without_link: Collection[NodeId]) -> AbstractAsyncContextManager[T]:
        """Open it."""
        ...


class Reach(Protocol):
    """Links to members that are not linked before they are asked: of a large realm, at other sites, of a client.

    ``keyed`` says that a key or a preference decides which member is asked, so that it may be any of its site.
    """

    def matters(self, address: str, *, keyed: bool = False) -> bool:
        """Return whether that has to be seen to before one member of a cluster is asked; costs two look-ups."""
        ...

    def lists(self, address: str) -> bool:
        """Return whether that has to be seen to before each member of a cluster is asked."""
        ...

    async def reach(
        self, address: str, timeout: float, *, everybody: bool, keyed: bool = False, tried: Collection[NodeId] = ()
    ) -> float:
        """Link to members of a cluster, as far as is needed to ask one, or each; return what is left of the time.

        Args:
            address: see ``Node.request``.
            timeout: seconds.
            everybody: each is to be asked.
            keyed: see above.
            tried: members that were asked in vain: another one is to be asked.
        """
        ...

    async def reach_node(self, node: NodeId, timeout: float) -> float:
        """Link to one node of this site, whatever it serves; return what is left of the time, as ``reach`` does."""
        ...

    def without_link(self, address: str) -> Collection[NodeId]:
        """Return the members of a cluster that are known and not linked.  Called for each broadcast: costs look-ups."""
        ...


async def reach_all(members: Reach, address: str, timeout: float) -> tuple[float, frozenset[NodeId]]:
    """Link to all members of a cluster that are not linked.

    Returns what is left of ``timeout``, in seconds, and the members that were without a link before or are now: some of
    them may be linked.  Cancelling it leaves handshakes in progress that end by themselves.
    """
    before = members.without_link(address)
    if members.lists(address):
        timeout = await members.reach(address, timeout, everybody=True)
    return timeout, frozenset((*before, *members.without_link(address)))


async def reach_one(
    members: Reach, address: str, preferred: str | None, timeout: float, *, keyed: bool = False
) -> float:
    """Link to members of a cluster as far as that is needed to ask one of them, at the preferred site if possible.

    Returns what is left of ``timeout``, in seconds.  Cancelling it leaves handshakes in progress that end by
    themselves.
    """
    if preferred and "@" not in address and members.matters(f"{address}@{preferred}"):
        # A site that does not answer must not take from the others the time in which these do.
        timeout = timeout / 2 + await members.reach(f"{address}@{preferred}", timeout / 2, everybody=False)
    if members.matters(address, keyed=keyed):
        timeout = await members.reach(address, timeout, everybody=False, keyed=keyed)
    return timeout


def open_with_one(
    members: Reach, address: str, preferred: str | None, opening: SiteReach[T], timeout: float, *, keyed: bool
) -> AbstractAsyncContextManager[T]:
    """Have a member of a cluster linked, then open something with what is left of the time."""
    if not (preferred or members.matters(address, keyed=keyed)):
        return opening(timeout=timeout)
    return _open_later(opening, partial(reach_one, members, address, preferred, timeout, keyed=keyed))


@asynccontextmanager
async def open_with_all(members: Reach, address: str, opening: ReachOfAll[T], timeout: float) -> AsyncIterator[T]:
    """Have all members of a cluster linked, then open something with what is left of the time."""
    left, without_link = await reach_all(members, address, timeout)
    async with opening(timeout=left, without_link=without_link) as opened:
        yield opened


@asynccontextmanager
async def _open_later(opening: SiteReach[T], reach: Callable[[], Awaitable[float]]) -> AsyncIterator[T]:
    async with opening(timeout=await reach()) as opened:
        yield opened
