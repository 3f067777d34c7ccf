"""Provided: a service whose handlers have what they need besides what callers send, for as long as it is a member."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager

from iris.patterns.messages import OwnNode
from iris.patterns.service.dependencies import Provision, lifespan_entered, lifespan_of_threads
from iris.patterns.service.service import Service


@asynccontextmanager
async def provided(
    service: Service,
    node: OwnNode,
    inner: OwnNode,
    entered: Callable[[AbstractAsyncContextManager[OwnNode]], AbstractAsyncContextManager[OwnNode]],
) -> AsyncIterator[Service]:
    """Hold open what the handlers of a service need: its lifespan, and nodes for those in worker threads.

    Args:
        service: the service that joins a cluster.
        node: the node at which it does, as its programs see it.
        inner: the same as a node of trio.
        entered: makes of a block of trio one that the program can enter.

    Raises:
        ConfigError: something that a handler needs is not there.
        Whatever the lifespan raises.
    """
    async with lifespan_entered(service.name, service._lifespan, node) as state, AsyncExitStack() as stack:
        others: dict[type[OwnNode], OwnNode] = {}
        for kind in service._nodes_needed():
            opening = kind._for_threads(inner)
            if opening is not None:
                others[kind] = await stack.enter_async_context(entered(opening))
        yield service._with(Provision(service.name, node, others, state))


@contextmanager
def provided_to_threads(service: Service, node: OwnNode) -> Iterator[Service]:
    """Hold it open in a program without an event loop, whose own node is one for worker threads; see ``provided``."""
    with lifespan_of_threads(service.name, service._lifespan, node) as state:
        yield service._with(Provision(service.name, node, {}, state))
