"""Service: handlers that are written with asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager

from iris.aio.node import Node
from iris.kernel.errors import ConfigError
from iris.patterns.service import Front, Outcomes
from iris.patterns.service import Service as AnyService


class Service(AnyService):
    """The handlers of a cluster, written with asyncio: ``iris run`` serves them in an asyncio event loop.

    It is an ``iris.Service`` otherwise, with the same methods and arguments, and may be the base of a class with
    operations as well::

        prices = iris.aio.Service("prices")

        @prices.request
        async def price(item: str) -> float:
            await asyncio.sleep(0.1)
            return 2.5

    Only nodes of ``iris.aio`` take it; with others joining raises ``ConfigError``.
    """

    _is_of_asyncio = True

    def __init__(
        self,
        name: str | None = None,
        *,
        allow: Iterable[str] | None = None,
        tracebacks: bool = False,
        paused_by: str | None = None,
        outcomes: Outcomes | None = None,
        lifespan: Callable[[Node], AbstractAsyncContextManager[object]] | None = None,
    ) -> None:
        super().__init__(
            name, allow=allow, tracebacks=tracebacks, paused_by=paused_by, outcomes=outcomes, lifespan=lifespan
        )

    def _check_front(self, front: Front) -> None:
        """Raise ConfigError, with what to do, if ``front`` is not asyncio's."""
        if front != "asyncio":
            raise ConfigError(
                f"service {self.name!r} is an iris.aio.Service, whose handlers are written with asyncio: serve it with "
                "'iris run', or join it at a node of iris.aio.open_node"
            )
