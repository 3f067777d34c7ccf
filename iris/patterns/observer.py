"""Observer: what joins calls, handlers and events to traces.

The patterns know this interface only.  Where it is None, as it is by default, it costs a look at an attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from iris.kernel.names import NodeId

Pattern = Literal["request", "survey", "broadcast", "event", "tunnel"]


class Observed(AbstractContextManager[object], Protocol):
    """A call, or that of a handler, from its beginning to ``end``; as a context manager it ends with the block."""

    def end(self, error: BaseException | None = None) -> None:
        """It has returned, or raised."""
        ...


class Observer(Protocol):
    """Looks on, and raises nothing."""

    def begin_call(
        self, pattern: Pattern, target: str, operation: str | None, headers: Mapping[str, str] | None
    ) -> tuple[Observed | None, Mapping[str, str] | None]:
        """A call of this node is about to be made.

        Args:
            pattern: of the call.
            target: a cluster, or the topic of an event.
            operation: that is asked for.
            headers: the caller's.

        Returns:
            What is to be ended with the call, if it is recorded; and the headers to send.
        """
        ...

    def begin_handling(self, pattern: Pattern, cluster: str, operation: str | None, given: Any) -> Observed | None:
        """A handler is about to be called, in a context of its own; returns what is to be ended if it is recorded.

        Args:
            pattern: of what is handled; the request of a survey is a request.
            cluster: that is served.
            operation: of the handler, one that the service has.
            given: what the handler gets: it has headers and a sender.
        """
        ...

    def arrived(self, topic: str, publisher: NodeId, headers: Mapping[str, str], count: int) -> None:
        """Events that have headers were taken by a subscriber.

        Args:
            topic: of the events.
            publisher: the node that published them.
            headers: which they share.
            count: of the events.
        """
        ...
