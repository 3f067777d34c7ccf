"""Serving: the services of one program as members of their clusters, at one node, in trio or in asyncio.

They join in the order in which they were given, and leave all at once when the process is interrupted: the time for
draining is that of one.  One that cannot join, or fails later, as by its lifespan, ends the others in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, final

import trio

import iris
from iris.cli.terminal import note

if TYPE_CHECKING:
    import iris.aio


class Announcer(Protocol):
    """The parent of this process."""

    def announce(self) -> None:
        """Say that all services are joined."""
        ...


class Membership(Protocol):
    """A membership of either kind of node."""

    def statistics(self) -> iris.ServiceStatistics:
        """Return a snapshot of the counters."""
        ...


@final
class Serving:
    """The services that one process serves.

    Args:
        services: cluster and service of each.
        drain_timeout: seconds that leaving may take.
        readiness: told when all are joined.

    Attributes:
        services: the same.
        memberships: those that are joined.
    """

    def __init__(
        self, services: Sequence[tuple[str, iris.Service]], drain_timeout: float, readiness: Announcer
    ) -> None:
        self.services: Final = services
        self._drain_timeout: Final = drain_timeout
        self._readiness: Final = readiness
        self.memberships: Final[list[Membership]] = []

    @property
    def is_of_asyncio(self) -> bool:
        """True if one of the services is written with asyncio: then trio is a guest of its event loop."""
        return any(service._is_of_asyncio for _, service in self.services)

    async def serve_in_trio(self, node: iris.Node, interrupted: Callable[[], Awaitable[None]]) -> None:
        """Serve until ``interrupted`` returns, and drain."""
        leave, failed, serving = trio.Event(), list[Exception](), trio.CancelScope()

        async def be_member(cluster: str, service: iris.Service, task_status: trio.TaskStatus[Membership]) -> None:
            joined = False
            try:
                async with node.join(cluster, service) as membership:
                    task_status.started(membership)
                    joined = True
                    await leave.wait()
            except Exception as error:
                if not joined or trio.current_effective_deadline() == -math.inf:  # all are cancelled
                    raise
                failed.append(error)
                serving.cancel()

        async with trio.open_nursery() as nursery:
            try:
                with serving:
                    for cluster, service in self.services:
                        self.memberships.append(await nursery.start(be_member, cluster, service))
                    self.joined(node)
                    await interrupted()
                    self.leaving()
            except Exception as error:  # noqa: BLE001 -- raised below, when those that have joined have drained
                failed.append(error)
            leave.set()
        self.raise_failed(failed)

    @staticmethod
    def raise_failed(failed: Sequence[Exception]) -> None:
        """Raise what services have failed by, if any has."""
        if failed:
            raise failed[0] if len(failed) == 1 else ExceptionGroup("services have failed", failed)

    def joined(self, node: iris.Node | iris.aio.Node) -> None:
        """Say that all services are joined."""
        where = ", ".join(node.addresses) or "this machine"
        note(f"{node.id} serves {', '.join(cluster for cluster, _ in self.services)} at {where}")
        self._readiness.announce()

    def leaving(self) -> None:
        """Say what is at work while they leave."""
        at_work = sum(membership.statistics().at_work for membership in self.memberships)
        if at_work:
            note(f"{at_work} at work: leaving within {self._drain_timeout:g} s; interrupt again to leave at once")
