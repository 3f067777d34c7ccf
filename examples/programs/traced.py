"""A service whose requests are one trace with those that it makes of others: OpenTelemetry, and Iris joins in.

Run it: pip install 'iris-mesh[tracing]' opentelemetry-sdk, then: python traced.py
"""

import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import iris

exporter = InMemorySpanExporter()  # yours is the one that sends spans to your collector
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

shop, stock = iris.Service("shop"), iris.Service("stock")


def name_of(span_id: int, spans: list[ReadableSpan]) -> str:
    return next(f"{span.kind.name} {span.name}" for span in spans if span.context and span.context.span_id == span_id)


async def main() -> None:
    async with iris.open_node("shop") as node:

        @shop.request("buy")
        async def buy(request: iris.Request) -> object:
            return await node.request("stock", request.payload, operation="take")

        @stock.request("take")
        async def take(request: iris.Request) -> object:
            return f"one {request.payload}"

        async with iris.open_node("stock") as store, store.join("stock", stock), node.join("shop", shop):
            with trace.get_tracer("traced").start_as_current_span("checkout"):
                print(await node.request("shop", "lamp", operation="buy", wait=5))
    spans = list(exporter.get_finished_spans())
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        below = name_of(span.parent.span_id, spans) if span.parent else "nothing"
        print(f"{span.kind.name} {span.name}, below {below}")


trio.run(main)
