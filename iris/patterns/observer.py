"""Observer: interface to a tracer, which joins calls, handlers and events to traces.

The patterns know this interface only.  Where it is None, as it is by default, it costs a look at an attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from iris.kernel.names import NodeId

Pattern = Literal["request", "survey", "broadcast", "event", "tunnel"]


class Observed(AbstractContextManager[object], Protocol):
    """A call, or that of a handler, from its beginning to ``end``; as a context manager it ends with the block."""

    def end(self, error: BaseException | None = None) -> None:
        """Note that it has returned, or raised."""
        ...


class Observer(Protocol):
    """An observer of calls, handlers and events.  It raises nothing."""

    @property
    def is_within(self) -> bool:
        """True if a call that the present task or thread made now would be recorded."""
        ...

    def begin_call(
        self, pattern: Pattern, target: str, operation: str | None, headers: Mapping[str, str] | None
    ) -> tuple[Observed | None, Mapping[str, str] | None]:
        """Note a call of this node that is about to be made.

        Args:
            pattern: pattern of the call.
            target: cluster, or topic of an event.
            operation: operation that is asked for.
            headers: headers of the caller.

        Returns:
            The record to end with the call, None if it is not recorded; and the headers to send.
        """
        ...

    def begin_handling(self, pattern: Pattern, cluster: str, operation: str | None, given: object) -> Observed | None:
        """Note a handler that is about to be called, in a context of its own; return the record to end, if any.

        Args:
            pattern: pattern of what is handled; the request of a survey is a request.
            cluster: cluster that is served.
            operation: operation of the handler, one that the service has.
            given: argument of the handler: it has headers and a sender.
        """
        ...

    def arrived(self, topic: str, publisher: NodeId, headers: Mapping[str, str], count: int) -> None:
        """Note events with headers that a subscriber has received.

        Args:
            topic: topic of the events.
            publisher: node that published them.
            headers: headers that they share.
            count: number of the events.
        """
        ...
