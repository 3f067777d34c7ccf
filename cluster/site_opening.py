"""What is opened with members that may first have to be linked, because they are at other sites."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar

from iris.cluster.sites import Sites

T = TypeVar("T", covariant=True)


class Opening(Protocol[T]):
    """Opens something within a time."""

    def __call__(self, *, timeout: float) -> AbstractAsyncContextManager[T]:
        """Open it."""
        ...


def open_everywhere(
    sites: Sites | None, address: str, opening: Opening[T], timeout: float, *, everybody: bool
) -> AbstractAsyncContextManager[T]:
    """Link to members of a cluster as far as needed, then open something with what is left of the time."""
    if sites is None or not (sites.listed(address) if everybody else sites.matters(address)):
        return opening(timeout=timeout)
    return _open_everywhere(sites, address, opening, timeout, everybody=everybody)


@asynccontextmanager
async def _open_everywhere(
    sites: Sites, address: str, opening: Opening[T], timeout: float, *, everybody: bool
) -> AsyncIterator[T]:
    left = await sites.reach(address, timeout, everybody=everybody)
    async with opening(timeout=left) as opened:
        yield opened
