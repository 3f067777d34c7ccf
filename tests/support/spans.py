"""Spans that were ended in this process, by OpenTelemetry's own SDK and its exporter in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_exporter: Final = InMemorySpanExporter()
_installed: Final[list[TracerProvider]] = []


class Spans:
    """The spans of a block, by name."""

    def __init__(self) -> None:
        self.tracer: Final = trace.get_tracer("tests")

    def all(self) -> list[ReadableSpan]:
        """Return them in the order in which they ended."""
        return list(_exporter.get_finished_spans())

    def named(self, name: str, kind: trace.SpanKind | None = None) -> ReadableSpan:
        """Return the only one of a name, and of a kind if it is given."""
        found = [span for span in self.all() if span.name == name and (kind is None or span.kind is kind)]
        assert len(found) == 1, f"{len(found)} of {name}: {[(span.name, span.kind) for span in self.all()]}"
        return found[0]

    def ends(self, name: str) -> tuple[ReadableSpan, ReadableSpan]:
        """Return the only span of a name at the caller's end, and the only one at the member's."""
        return self.named(name, trace.SpanKind.CLIENT), self.named(name, trace.SpanKind.SERVER)


@contextmanager
def recorded() -> Iterator[Spans]:
    """Record what ends in the block.  A process has one provider of tracers, and so this has one for all tests."""
    if not _installed:
        _installed.append(TracerProvider())
        _installed[0].add_span_processor(SimpleSpanProcessor(_exporter))
        trace.set_tracer_provider(_installed[0])
    _exporter.clear()
    yield Spans()
    _exporter.clear()


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    """Return the attributes of a span."""
    assert span.attributes is not None
    return span.attributes


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    """Return whether a span is directly below another one, in the same trace."""
    assert child.context is not None
    assert parent.context is not None
    return (
        child.parent is not None
        and child.parent.span_id == parent.context.span_id
        and child.context.trace_id == parent.context.trace_id
    )
