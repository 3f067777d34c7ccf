"""Serving: the services of one program as members of their clusters, at one node, in trio or in asyncio.

They join in the order in which they were given, and leave all at once when the process is interrupted: the time for
draining is that of one.  One that cannot join ends the others in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Protocol, final

import trio

import iris
import iris.aio
from iris.cli.readiness import Readiness
from iris.cli.terminal import note


class _Membership(Protocol):
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
    """

    def __init__(
        self, services: Sequence[tuple[str, iris.Service]], drain_timeout: float, readiness: Readiness
    ) -> None:
        self._services: Final = services
        self._drain_timeout: Final = drain_timeout
        self._readiness: Final = readiness
        self._memberships: Final[list[_Membership]] = []

    @property
    def is_of_asyncio(self) -> bool:
        """True if one of the services is written with asyncio: then trio is a guest of its event loop."""
        return any(isinstance(service, iris.aio.Service) for _, service in self._services)

    async def serve_in_trio(self, node: iris.Node, interrupted: Callable[[], Awaitable[None]]) -> None:
        """Serve until ``interrupted`` returns, and drain."""
        leave, failed = trio.Event(), None

        async def be_member(cluster: str, service: iris.Service, task_status: trio.TaskStatus[_Membership]) -> None:
            async with node.join(cluster, service) as membership:
                task_status.started(membership)
                await leave.wait()

        async with trio.open_nursery() as nursery:
            try:
                for cluster, service in self._services:
                    self._memberships.append(await nursery.start(be_member, cluster, service))
                self._joined(node)
                await interrupted()
                self._leaving()
            except Exception as error:  # noqa: BLE001 -- raised below, when those that have joined have drained
                failed = error
            leave.set()
        if failed is not None:
            raise failed

    async def serve_in_asyncio(self, node: iris.aio.Node, interrupted: Callable[[], Awaitable[None]]) -> None:
        """Serve until ``interrupted`` returns, and drain; services that are written with trio run in trio."""
        leave, failed = asyncio.Event(), None

        async def be_member(
            joining: AbstractAsyncContextManager[_Membership], joined: asyncio.Future[_Membership]
        ) -> None:
            try:
                async with joining as membership:
                    joined.set_result(membership)
                    await leave.wait()
            except Exception as error:
                if joined.done():
                    raise
                joined.set_exception(error)

        async with asyncio.TaskGroup() as tasks:
            try:
                for cluster, service in self._services:
                    joining: AbstractAsyncContextManager[_Membership] = (
                        node.join(cluster, service)
                        if isinstance(service, iris.aio.Service)
                        else node._enter(partial(iris.Node.join, cluster=cluster, service=service))
                    )
                    joined: asyncio.Future[_Membership] = asyncio.get_running_loop().create_future()
                    tasks.create_task(be_member(joining, joined))
                    self._memberships.append(await joined)
                self._joined(node)
                await interrupted()
                self._leaving()
            except Exception as error:  # noqa: BLE001 -- raised below, when those that have joined have drained
                failed = error
            leave.set()
        if failed is not None:
            raise failed

    def _joined(self, node: iris.Node | iris.aio.Node) -> None:
        where = ", ".join(node.addresses) or "this machine"
        note(f"{node.id} serves {', '.join(cluster for cluster, _ in self._services)} at {where}")
        self._readiness.announce()

    def _leaving(self) -> None:
        at_work = sum(membership.statistics().at_work for membership in self._memberships)
        if at_work:
            note(f"{at_work} at work: leaving within {self._drain_timeout:g} s; interrupt again to leave at once")
