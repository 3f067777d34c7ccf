"""Observer: what looks on while handlers are called and events arrive, for metrics and traces.

The patterns know this interface only.  Where it is None, as it is by default, it costs a look at an attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, Protocol

from iris.kernel.names import NodeId

Pattern = Literal["request", "survey", "broadcast", "event", "tunnel"]


class Observer(Protocol):
    """Looks on; what it is called with, it returns or raises unchanged."""

    def handle(
        self, pattern: Pattern, handler: Callable[[Any], Any], cluster: str, operation: str | None, given: Any
    ) -> Coroutine[Any, Any, Any]:
        """Call a handler with a request, broadcast or tunnel, and return what it returns, awaited.

        Args:
            pattern: of what is handled; the request of a survey is a request.
            handler: of the service.
            cluster: that is served.
            operation: of the handler, one that the service has.
            given: what the handler gets; it has headers.
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
