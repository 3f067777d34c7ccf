"""Observer of one node: measures its calls and its handlers, and joins them to traces.

A node has none until metrics are served or opentelemetry is there.  Its two plain calls for each request, one when it
begins and one when it ends, are on the path of every request: docs/observing.md says what that costs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from types import TracebackType
from typing import Any, Self, TypeVar, final

from iris.kernel.names import NodeId
from iris.kernel.tasks import protected_context
from iris.node.telemetry.calls import BUCKETS, CallHistogram, CallTable
from iris.node.telemetry.tracing import OpenSpan, Tracing
from iris.patterns.observer import Pattern
from iris.patterns.request import Begun

Headers = Mapping[str, str] | None

T = TypeVar("T")


@final
class ObservedCall:
    """One call of this node, from its beginning to ``end``; as a context manager it ends with the block.

    Attributes:
        headers: that are to be sent: those of the caller, and the trace's.
    """

    __slots__ = ("_histogram", "_is_over", "_span", "_started", "headers")

    def __init__(self, histogram: CallHistogram | None, span: OpenSpan | None, headers: Headers) -> None:
        self._histogram = histogram
        self._span = span
        self._is_over = False
        self.headers = headers
        self._started = perf_counter()

    def end(self, error: BaseException | None = None) -> None:
        """The call is over; once."""
        if self._is_over:
            return
        self._is_over = True
        histogram = self._histogram
        if histogram is not None:
            seconds = perf_counter() - self._started
            histogram.counts[bisect_left(BUCKETS, seconds)] += 1  # as ``observe``, without a call: 0.1 us
            histogram.sum += seconds
            if error is not None:
                histogram.failed(error)
        if self._span is not None:
            self._span.end(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)


@final
class ObservedRequest:
    """A request that was begun for who is no task of trio: as ``Begun``, and its end is seen."""

    __slots__ = ("_begun", "_call")

    def __init__(self, begun: Begun, call: ObservedCall) -> None:
        self._begun = begun
        self._call = call

    def abandon(self) -> None:
        """See ``Begun.abandon``."""
        self._begun.abandon()
        self._call.end(Abandoned())

    def reply(self) -> tuple[Any] | None:
        """See ``Begun.reply``."""
        try:
            reply = self._begun.reply()
        except BaseException as error:
            self._call.end(error)
            raise
        if reply is not None:
            self._call.end()
        return reply

    async def go_on(self) -> Any:
        """See ``Begun.go_on``."""
        with self._call:
            return await self._begun.go_on()


@final
class Abandoned(Exception):
    """The caller stopped waiting."""


@final
class NodeObserver:
    """See the module.  Implements ``iris.patterns.observer.Observer``.

    Attributes:
        calls: latencies of this node's calls; None: they are not measured.
        handlers: of its handlers; None likewise.
        tracing: joins them to traces; None: it does not.
    """

    def __init__(self) -> None:
        self.calls: CallTable | None = None
        self.handlers: CallTable | None = None
        self.tracing: Tracing | None = None

    def measure(self) -> None:
        """Measure latencies from now on."""
        if self.calls is None:
            self.calls, self.handlers = CallTable(), CallTable()

    @property
    def is_traced(self) -> bool:
        """Whether the present task or thread is within a trace."""
        return self.tracing is not None and self.tracing.is_within

    # -- calls ----------------------------------------------------------------------------------------------

    def begin(self, pattern: Pattern, cluster: str, operation: str | None, headers: Headers) -> ObservedCall:
        """Begin a call to a cluster: a request, a survey, a broadcast or a tunnel."""
        span: OpenSpan | None = None
        tracing, calls = self.tracing, self.calls
        if tracing is not None and tracing.is_within:
            span, headers = tracing.begin_call(pattern, cluster, operation, headers)
        if calls is None or pattern == "tunnel":  # which lasts for as long as it is of use
            return ObservedCall(None, span, headers)
        histogram = calls.known.get((pattern, cluster, operation)) or calls.of(pattern, cluster, operation)
        return ObservedCall(histogram, span, headers)

    def begin_event(self, topic: str, headers: Headers) -> ObservedCall | None:
        """Begin to publish an event within a trace; None if there is none to join, or its headers name one already."""
        if self.tracing is None or not self.tracing.is_within:
            return None
        span, sent = self.tracing.begin_call("event", topic, None, headers)
        return None if sent is headers else ObservedCall(None, span, sent)

    @protected_context
    async def within(
        self,
        pattern: Pattern,
        cluster: str,
        operation: str | None,
        headers: Headers,
        opening: Callable[[Headers], AbstractAsyncContextManager[T]],
    ) -> AsyncIterator[T]:
        """A block that is one call: a survey or a tunnel.  ``opening`` gets the headers to send."""
        with self.begin(pattern, cluster, operation, headers) as call:
            async with opening(call.headers) as opened:
                yield opened

    # -- Observer -------------------------------------------------------------------------------------------

    def begin_handling(self, pattern: Pattern, cluster: str, operation: str | None, given: Any) -> ObservedCall:
        """See ``Observer.begin_handling``."""
        span: OpenSpan | None = None
        if self.tracing is not None and given.headers:
            span = self.tracing.begin_handling(pattern, cluster, operation, given)
        handlers = self.handlers
        if handlers is None or pattern == "tunnel":
            return ObservedCall(None, span, None)
        histogram = handlers.known.get((pattern, cluster, operation)) or handlers.of(pattern, cluster, operation)
        return ObservedCall(histogram, span, None)

    def arrived(self, topic: str, publisher: NodeId, headers: Mapping[str, str], count: int) -> None:
        """See ``Observer.arrived``."""
        if self.tracing is not None:
            self.tracing.note_arrival(topic, publisher, headers, count)
