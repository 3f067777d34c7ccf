"""Tracing: W3C Trace Context in the headers of messages, spans at both ends, by the API of OpenTelemetry.

Iris joins traces and begins none.  A call made within a span has a span of its own below it, and so has the handler
below that; a call outside of every span, and a request without a ``traceparent``, have none.  So what begins a
trace, a web framework or the program itself, decides what is sampled: within a trace that is not, its headers are
handed on and nothing is recorded.

That is what most requests are, so the sampler's decision is looked at before anything is made: the caller writes one
header, the member keeps it unread.  docs/explanation/measured/telemetry.md says what it costs.

This module is imported when a node opens in a program that has imported opentelemetry.  Spans have the names and
attributes of OpenTelemetry's semantic conventions: those of RPC for requests, surveys and tunnels, those of messaging
for broadcasts and events.

https://www.w3.org/TR/trace-context/, https://opentelemetry.io/docs/specs/semconv/
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Final, Self, TypeVar, final

from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace import (
    DEFAULT_TRACE_STATE,
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from iris.kernel.errors import RemoteError, text_of
from iris.kernel.names import NodeId
from iris.kernel.tasks import protected_context
from iris.patterns.observer import Pattern
from iris.patterns.request import Begun
from iris.patterns.service import error_name

Headers = Mapping[str, str] | None

T = TypeVar("T")

_log: Final = logging.getLogger("iris")

_failures: Final[set[type[Exception]]] = set()
"""Kinds of errors of what records spans that were logged, each once."""

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_LENGTH: Final = 55
_UNSAMPLED: Final = frozenset("02468ace")
"""Length of a ``traceparent`` of version 00, and its last characters where the trace is not sampled."""

_ROOM: Final = 7 * 1024
"""Limit on the headers in bytes up to which a trace's are added: they take 700, and a message has room for 8 KiB."""

_SAMPLED: Final = int(TraceFlags.SAMPLED)

_FLAGS: Final = tuple(f"{flags:02x}" for flags in range(256))

_SYSTEM: Final = "iris"

_MESSAGING: Final = frozenset(("broadcast", "event"))

_propagator: Final = TraceContextTextMapPropagator()

_EMPTY: Final = Context()

(_SPAN,) = set_span_in_context(INVALID_SPAN, _EMPTY)
"""Under what a context has its span.  ``get_current_span`` looks at its type as well, which takes 0.4 us."""


@final
class OpenSpan:
    """A span until its end; as a context manager it ends with the block."""

    __slots__ = ("_is_over", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._is_over = False

    def end(self, error: BaseException | None = None) -> None:
        """End it, once; what was raised, if anything, is its status."""
        if self._is_over:
            return
        self._is_over = True
        with _surviving():
            if error is not None:
                reason = error.code if isinstance(error, RemoteError) else error_name(error)
                self._span.set_attribute("error.type", str(reason)[:64])
                self._span.set_status(Status(StatusCode.ERROR, text_of(error)[:256]))
            self._span.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)

    def following(self, begun: Begun) -> TracedRequest:
        """Return a request that was begun for a caller outside of trio's tasks, the end of which ends this span."""
        return TracedRequest(begun, self)


@final
class TracedRequest:
    """A request like ``Begun``, whose end is that of a span."""

    __slots__ = ("_begun", "_span")

    def __init__(self, begun: Begun, span: OpenSpan) -> None:
        self._begun = begun
        self._span = span

    def abandon(self) -> None:
        """See ``Begun.abandon``."""
        self._begun.abandon()
        self._span.end(Abandoned())

    def reply(self) -> tuple[Any] | None:
        """See ``Begun.reply``."""
        try:
            reply = self._begun.reply()
        except BaseException as error:
            self._span.end(error)
            raise
        if reply is not None:
            self._span.end()
        return reply

    async def go_on(self) -> Any:
        """See ``Begun.go_on``."""
        with self._span:
            return await self._begun.go_on()


@final
class Abandoned(Exception):
    """The caller stopped waiting."""


@final
class UnreadSpan(NonRecordingSpan):
    """The caller's span in a trace that is not sampled.  Its header is read when somebody asks for its context.

    Attributes:
        parent: the header, as it came.
    """

    _read: SpanContext | None = None

    def __init__(self, parent: str) -> None:
        self.parent: Final = parent

    def get_span_context(self) -> SpanContext:
        """Return the context that the header names; an invalid one, if it names none."""
        if self._read is None:
            self._read = get_current_span(_propagator.extract({TRACEPARENT: self.parent}, _EMPTY)).get_span_context()
        return self._read

    def __repr__(self) -> str:
        return f"<UnreadSpan {self.parent!r}>"


@final
class Tracing:
    """Joins the calls and handlers of a node to traces.  Implements ``iris.patterns.observer.Observer``."""

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._tracer = get_tracer("iris")  # one that is configured later is used from then on

    @property
    def is_within(self) -> bool:
        """True if the present task or thread is within a span."""
        return _SPAN in get_current()

    # -- calls ----------------------------------------------------------------------------------------------

    def begin_call(
        self, pattern: Pattern, target: str, operation: str | None, headers: Headers
    ) -> tuple[OpenSpan | None, Headers]:
        """See ``Observer.begin_call``.  Headers that name a trace already, or have no room for it, stay as they are."""
        current: Any = get_current().get(_SPAN)
        if current is None or (headers and _is_full(headers)):
            return None, headers
        span: OpenSpan | None = None
        if type(current) is UnreadSpan:
            sent = {TRACEPARENT: current.parent}
        else:
            trace_id, span_id, _, flags, state, is_valid = current.get_span_context()
            if not is_valid:
                return None, headers
            if flags & _SAMPLED:
                kind = SpanKind.PRODUCER if pattern in _MESSAGING else SpanKind.CLIENT
                started = self._start(pattern, "send", target, operation, kind)
                if started is not None:
                    span = OpenSpan(started)
                    _, span_id, _, flags, state, _ = started.get_span_context()
            # As formatted numbers the ids took three times as long.
            ids = (trace_id << 64 | span_id).to_bytes(24).hex("-", -16)
            sent = {TRACEPARENT: f"00-{ids}-{_FLAGS[flags]}"}
            if state is not DEFAULT_TRACE_STATE and state:
                sent[TRACESTATE] = state.to_header()
        return span, {**headers, **sent} if headers else sent

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
        span, headers = self.begin_call(pattern, cluster, operation, headers)
        with nullcontext() if span is None else span:
            async with opening(headers) as opened:
                yield opened

    # -- handlers and subscribers ---------------------------------------------------------------------------

    def begin_handling(self, pattern: Pattern, cluster: str, operation: str | None, given: Any) -> OpenSpan | None:
        """See ``Observer.begin_handling``; what the handler asks of others is below its span then."""
        headers = given.headers
        parent = headers.get(TRACEPARENT)
        if parent is None:
            return None
        if len(parent) == _LENGTH and parent[-1] in _UNSAMPLED and TRACESTATE not in headers:
            attach(Context({_SPAN: UnreadSpan(parent)}))
            return None
        context = _propagator.extract(headers, _EMPTY)
        if not _names_sampled(context):
            attach(context)
            return None
        kind = SpanKind.CONSUMER if pattern in _MESSAGING else SpanKind.SERVER
        span = self._start(pattern, "process", cluster, operation, kind, context, given.sender.node)
        if span is None:
            attach(context)
            return None
        attach(set_span_in_context(span, _EMPTY))
        return OpenSpan(span)

    def arrived(self, topic: str, publisher: NodeId, headers: Mapping[str, str], count: int) -> None:
        """See ``Observer.arrived``: a span that is over at once, below that of the publisher."""
        parent = headers.get(TRACEPARENT)
        if parent is None or (len(parent) == _LENGTH and parent[-1] in _UNSAMPLED):
            return
        context = _propagator.extract(headers, _EMPTY)
        if _names_sampled(context):
            # The conventions have a pull of messages as CLIENT, with a link to what each message was created in.
            span = self._start("event", "receive", topic, None, SpanKind.CLIENT, context, publisher)
            if span is not None:
                with _surviving():
                    span.set_attribute("messaging.batch.message_count", count)
                    span.end()

    def _start(
        self,
        pattern: Pattern,
        verb: str,
        target: str,
        operation: str | None,
        kind: SpanKind,
        context: Context | None = None,
        peer: NodeId | None = None,
    ) -> Span | None:
        """Begin a span; None if what the program records spans with fails."""
        attributes: dict[str, str] = {"iris.node.id": self._node, "iris.pattern": pattern}
        if peer is not None:
            attributes["iris.peer.id"] = peer
        if pattern in _MESSAGING:
            name = f"{verb} {target}"
            attributes["messaging.system"] = _SYSTEM
            attributes["messaging.destination.name"] = target
            attributes["messaging.operation.name"] = attributes["messaging.operation.type"] = verb
        else:
            name = f"{target}/{operation}" if operation else target
            attributes["rpc.system.name"] = _SYSTEM
            attributes["rpc.method"] = name
            if kind is SpanKind.CLIENT:
                attributes["server.address"] = target
        with _surviving():
            links = [Link(get_current_span(context).get_span_context())] if verb == "receive" else None
            return self._tracer.start_span(name, context=context, kind=kind, attributes=attributes, links=links)
        return None


@contextmanager
def _surviving() -> Iterator[None]:
    """Log the errors of the program's own processor or sampler of spans: they cost the span, and nothing else."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 -- see above
        if type(error) not in _failures:
            _failures.add(type(error))
            _log.error("a span was not recorded", exc_info=error, extra={"reason": type(error).__name__})


def _names_sampled(context: Context) -> bool:
    caller = get_current_span(context).get_span_context()
    return caller.is_valid and caller.trace_flags.sampled


def _is_full(headers: Mapping[str, str]) -> bool:
    """Return whether headers have no room for a trace, or name one, or are none: then sending them raises."""
    try:
        size = sum(len(name.encode()) + len(text.encode()) for name, text in headers.items())
    except (AttributeError, UnicodeEncodeError):
        return True
    return size > _ROOM or TRACEPARENT in headers
