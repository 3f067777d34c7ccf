"""Port of queues and consumers to the node that uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from iris.cluster.membership import Member
from iris.patterns.multicast import Answers
from iris.patterns.tunnel import Tunnel


class BridgeUser(Protocol):
    """Port of queues and consumers to the node, which has these methods under the same names."""

    def members(self, cluster: str) -> Sequence[Member]:
        """Return the members of a cluster as seen now."""
        ...

    def survey(
        self, cluster: str, payload: Any, *, operation: str | None = ..., timeout: float = ...
    ) -> AbstractAsyncContextManager[Answers]:
        """Ask every member of a cluster."""
        ...

    def open_tunnel(self, cluster: str, *, operation: str | None = ...) -> AbstractAsyncContextManager[Tunnel]:
        """Open a tunnel to a member of a cluster."""
        ...

    async def publish_confirmed(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = ...,
        headers: Mapping[str, str] | None = ...,
        timeout: float = ...,
    ) -> None:
        """Publish an event, and wait until its durable subscribers have confirmed it."""
        ...
