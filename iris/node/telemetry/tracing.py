"""Tracing: W3C Trace Context in the headers of messages, spans at both ends, by the API of OpenTelemetry.

Iris joins traces and begins none.  A call made within a span has a span of its own below it, and so has the handler
below that; a call outside of every span, and a request without a ``traceparent``, have none.  So whoever begins a
trace, a web framework or the program itself, decides what is sampled: within a trace that is not, its headers are
handed on and nothing is recorded.

This module imports no opentelemetry until a node opens in a program that has.  Spans have the names and attributes of
OpenTelemetry's semantic conventions: those of RPC for requests, surveys and tunnels, those of messaging for broadcasts
and events.

https://www.w3.org/TR/trace-context/, https://opentelemetry.io/docs/specs/semconv/
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

from iris.kernel.errors import RemoteError
from iris.kernel.names import NodeId
from iris.patterns.observer import Pattern

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanKind

TRACEPARENT: Final = "traceparent"

_ROOM: Final = 7 * 1024
"""Bytes of headers up to which a trace's are added: they take 700 at most, and a message has room for 8 KiB."""

_SYSTEM: Final = "iris"


@final
class OpenSpan:
    """A span until its end."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, error: BaseException | None) -> None:
        """End it; what was raised, if anything, is its status."""
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            reason = error.code if isinstance(error, RemoteError) else type(error).__name__
            self._span.set_attribute("error.type", str(reason)[:64])
            self._span.set_status(Status(StatusCode.ERROR, str(error)[:256]))
        self._span.end()


@final
class Tracing:
    """Joins the calls and handlers of a node to traces.  Made where opentelemetry is imported."""

    def __init__(self, node: NodeId) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._node = node
        self._attach = context.attach
        self._current = trace.get_current_span
        self._within = trace.set_span_in_context
        self._none = trace.INVALID_SPAN
        self._kinds = trace.SpanKind
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("iris")  # one that is configured later is used from then on

    @property
    def is_within(self) -> bool:
        """Whether the present task or thread is within a span."""
        return self._current() is not self._none

    def begin_call(
        self, pattern: Pattern, target: str, operation: str | None, headers: Mapping[str, str] | None
    ) -> tuple[OpenSpan | None, Mapping[str, str] | None]:
        """Begin the span of a call, if it is made within one that is recorded.

        Returns:
            The span, and the headers that are to be sent.  Those that name a trace already stay as they are.
        """
        current = self._current()
        if not current.get_span_context().is_valid or (headers and _is_full(headers)):
            return None, headers
        span: OpenSpan | None = None
        sending = current
        if current.get_span_context().trace_flags.sampled:
            kinds = self._kinds
            kind = kinds.PRODUCER if pattern in _MESSAGING else kinds.CLIENT
            sending = self._start(pattern, "send", target, operation, kind)
            span = OpenSpan(sending)
        sent: dict[str, str] = {} if headers is None else {**headers}
        self._propagator.inject(sent, self._within(sending))
        return span, sent

    def begin_handling(self, pattern: Pattern, cluster: str, operation: str | None, given: Any) -> OpenSpan | None:
        """Begin the span of a handler, below that of its caller; what it asks of others is below it then.

        It is to be called in a context of the handler's own.
        """
        if TRACEPARENT not in given.headers:
            return None
        context = self._propagator.extract(given.headers)
        caller = self._current(context).get_span_context()
        if not caller.is_valid:
            return None  # whatever the header says, it is no trace
        if not caller.trace_flags.sampled:
            self._attach(context)
            return None
        kinds = self._kinds
        kind = kinds.CONSUMER if pattern in _MESSAGING else kinds.SERVER
        span = self._start(pattern, "process", cluster, operation, kind, context, peer=given.sender.node)
        self._attach(self._within(span, context))
        return OpenSpan(span)

    def note_arrival(self, topic: str, publisher: NodeId, headers: Mapping[str, str], count: int) -> None:
        """Events were taken by a subscriber: a span that is over at once, below that of their publisher."""
        if TRACEPARENT in headers:
            context = self._propagator.extract(headers)
            caller = self._current(context).get_span_context()
            if caller.is_valid and caller.trace_flags.sampled:
                kind = self._kinds.CONSUMER
                span = self._start("event", "receive", topic, None, kind, context, peer=publisher)
                span.set_attribute("messaging.batch.message_count", count)
                span.end()

    def _start(
        self,
        pattern: Pattern,
        verb: str,
        target: str,
        operation: str | None,
        kind: SpanKind,
        context: Any = None,
        *,
        peer: NodeId | None = None,
    ) -> Span:
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
        return self._tracer.start_span(name, context=context, kind=kind, attributes=attributes)


_MESSAGING: Final = frozenset(("broadcast", "event"))


def _is_full(headers: Mapping[str, str]) -> bool:
    """Tell whether headers have no room for a trace, or name one, or are none: then sending them raises."""
    try:
        size = sum(len(name.encode()) + len(text.encode()) for name, text in headers.items())
    except (AttributeError, UnicodeEncodeError):
        return True
    return size > _ROOM or TRACEPARENT in headers


def tracing_if_imported(node: NodeId) -> Tracing | None:
    """Return what joins a node's calls to traces, if this program has imported opentelemetry; else None."""
    return Tracing(node) if "opentelemetry.trace" in sys.modules else None
