"""Reach: a call that first links the members that it is for, because they are not linked before they are asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar

T = TypeVar("T", covariant=True)


class SiteReach(Protocol[T]):
    """Opens a call within a time, once the member is linked."""

    def __call__(self, *, timeout: float) -> AbstractAsyncContextManager[T]:
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

    async def reach(self, address: str, timeout: float, *, everybody: bool, keyed: bool = False) -> float:
        """Link to members of a cluster, as far as is needed to ask one, or each; return what is left of the time."""
        ...


async def reach_one(
    members: Reach, address: str, preferred: str | None, timeout: float, *, keyed: bool = False
) -> float:
    """Link to members of a cluster as far as that is needed to ask one of them, at the preferred site if possible.

    Returns what is left of ``timeout``, in seconds.  Cancelling it leaves handshakes in progress that end by
    themselves.
    """
    if preferred and "@" not in address and members.matters(f"{address}@{preferred}"):
        timeout = await members.reach(f"{address}@{preferred}", timeout, everybody=False)
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


def open_with_all(
    members: Reach, address: str, opening: SiteReach[T], timeout: float
) -> AbstractAsyncContextManager[T]:
    """Have all members of a cluster linked, then open something with what is left of the time."""
    if not members.lists(address):
        return opening(timeout=timeout)
    return _open_later(opening, partial(members.reach, address, timeout, everybody=True))


@asynccontextmanager
async def _open_later(opening: SiteReach[T], reach: Callable[[], Awaitable[float]]) -> AsyncIterator[T]:
    async with opening(timeout=await reach()) as opened:
        yield opened
